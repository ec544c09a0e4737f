"""One rank of record_moe_shares.py: share_rank.py SETTINGS, which are JSON. On SIGUSR1 it writes where every thread is."""
import contextlib
import faulthandler
import gc
import json
import os
import pathlib
import signal
import statistics
import struct
import sys
import time
from typing import NamedTuple

import torch

import layer
import measure
import mkernel
import shares

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import record_moe  # noqa: E402

COPIES = 4           # multiprocessors for the daemons: copies from a GPU to itself are kernels
FEWEST = 3           # iterations, however little time there is
JOIN_TIMEOUT = 60.0  # seconds of joining a group, and of every wait for the other ranks


class Meeting:
    """All ranks, in a group that no operation of a case can end. start_line() brings the GPU's streams together: a launch of a very
    small operation, which ends on all ranks at about the same time."""

    def __init__(self, session, settings):
        self.rank, self.world = settings["rank"], settings["ranks"]
        self.group = session.join("meeting", self.world, self.rank, timeout=JOIN_TIMEOUT)
        self.launch = None
        if settings["device"] == "cuda":
            self._prepare()

    def _prepare(self):
        tokens, width, cuda = 8, 64, {"device": "cuda"}
        self.operation = self.group.moe(max_tokens=tokens, hidden=width, n=width, experts=self.world, topk=1, executor="cuda", sms=COPIES)
        bf16 = {"dtype": torch.bfloat16, **cuda}
        topk = (torch.arange(tokens, dtype=torch.int32, **cuda) % self.world)[:, None].contiguous()
        self.launch = self.operation.bind(torch.zeros(tokens, width, **bf16), topk, torch.ones(tokens, 1, **cuda),
                                          torch.zeros(1, width, width, **bf16), None, torch.zeros(tokens, width, **bf16),
                                          deadline=measure.DEADLINE)

    def barrier(self):
        self.group.barrier()

    def exchange(self, said):
        return self.group.exchange(said)

    def start_line(self):
        if self.launch is None:
            self.barrier()
        else:
            self.launch.enqueue(torch.cuda.current_stream().cuda_stream)


class MeetingClock(measure.Clock):
    """Nothing else runs on the GPU while a launch is timed, and no rank loads a kernel: that could wait for a kernel which waits for
    this rank."""

    def __init__(self, how, meeting):
        super().__init__(how)
        self.meeting = meeting
        if how != "host":
            self.beyond_cache.sum()
            torch.cuda._sleep(1)
            torch.cuda.synchronize()

    def time(self, call):
        self.meeting.barrier()
        try:
            return super().time(call)
        finally:
            self.meeting.barrier()

    def start_line(self):
        self.meeting.start_line()


class Outcome(NamedTuple):
    """Of one iteration and rank."""

    ms: float
    floor_ms: float
    off: float        # the largest error over its tolerance
    floor_off: float
    now: float
    problem: str

    FORM = "5d400s"

    def packed(self):
        return struct.pack(self.FORM, *self[:-1], self.problem.encode()[:400])

    @classmethod
    def of(cls, said):
        *numbers, text = struct.unpack(cls.FORM, said)
        return cls(*numbers, text.rstrip(b"\0").decode(errors="replace"))


class Load(NamedTuple):
    """Of one iteration."""

    most_rows: int   # of the most loaded rank
    moved: int       # of these, those that are another expert's of the rank in its floor
    wire_bytes: int  # of the rank that sends or receives most

    @classmethod
    def of(cls, share, floor):
        most = max(share.rows, key=sum)
        return cls(sum(most), shares.fitted(most, floor.shape.topk)[1], share.wire_bytes())


class Contest:
    """The operation of all ranks and the floor of each, in turns."""

    def __init__(self, clock, meeting, group, ours, floor):
        self.clock, self.meeting, self.group, self.sides = clock, meeting, group, (ours, floor)

    def turn(self, number):
        """The outcomes of all ranks. Error: measure.Wrong, on all of them."""
        times, offs, problem = [float("nan")] * 2, [float("inf")] * 2, ""
        with self.group.keep_active():  # launches that are queued and put cannot wake the daemon
            for side in (number % 2, 1 - number % 2):
                contender = self.sides[side]
                try:
                    times[side], offs[side] = measure.checked(contender.case, contender, contender, self.clock)
                except (mkernel.Error, measure.Wrong) as error:
                    problem = problem or f"{'floor: ' if side else ''}{type(error).__name__}: {error}"
        all_said = [Outcome.of(said) for said in self.meeting.exchange(Outcome(*times, *offs, time.time(), problem).packed())]
        problems = [f"rank {rank}: {said.problem}" for rank, said in enumerate(all_said) if said.problem]
        if problems:
            raise measure.Wrong("; ".join(problems))
        return all_said


class Rank:
    def __init__(self, settings, sessions, meeting, clock):
        self.settings, self.sessions, self.meeting, self.clock = settings, sessions, meeting, clock
        self.device = torch.device(settings["device"])
        self.sms = settings["sms"]
        if self.sms == 0 and settings["device"] == "cuda":
            self.sms = (torch.cuda.get_device_properties(0).multi_processor_count - COPIES) // settings["ranks"] // 2 * 2

    def now(self):
        """Rank 0's, so that all decide alike."""
        return struct.unpack("d", self.meeting.exchange(struct.pack("d", time.time()))[0])[0]

    def measure(self, case, until):
        """The row of a case; more than the fewest iterations only before `until`."""
        kind, name, nodes, routing = (case[key] for key in ("kind", "name", "nodes", "routing"))
        shape = shares.shape_of(kind, name, case["tokens"])
        if self.settings["device"] == "cpu":
            shape = layer.small(shape)
        rank, world, executor = self.meeting.rank, self.meeting.world, self.settings["device"]
        common = torch.Generator().manual_seed(1)
        share = shares.ShareCase(shape, layer.ROUTINGS[routing], self.device, self.meeting, nodes, common)
        floor = shares.FloorCase(share, shares.FLOOR_TOPK[routing])
        options = {"sms": self.sms} if executor == "cuda" else {}
        with contextlib.ExitStack() as stack:  # a launch that fails ends its group: the next case has others
            groups = [stack.enter_context(session.join(f"{name} {routing} {of_which}", *membership, timeout=JOIN_TIMEOUT))
                      for session, of_which, membership in ((self.sessions[nodes], "all", (world, rank)),
                                                            (self.sessions[1], f"floor {rank}", (1, 0)))]
            ours = measure.Ours(share, groups[0], executor, capacity=share.capacity, **options)
            stack.callback(ours.close)
            alone = measure.Ours(floor, groups[1], executor, **options)
            stack.callback(alone.close)
            expected = ours.operation.expected_seconds()
            contest = Contest(self.clock, self.meeting, groups[0], ours, alone)
            turns, loads = [], []
            for number in range(-1, self.settings["iterations"]):
                share.renew()
                floor.renew()
                outcomes = contest.turn(number)
                if number < 0:  # makes memory, and loads what verifies
                    continue
                turns.append(outcomes)
                loads.append(Load.of(share, floor))
                if len(turns) >= FEWEST and outcomes[0].now > until:
                    break
        row = {"kind": kind, "routing": routing, "nodes": nodes, "expected_ms": None if expected is None else 1e3 * expected,
               "capacity": share.capacity, "floor_topk": floor.shape.topk}
        return self._row(shape, row, turns, loads)

    def _row(self, shape, row, turns, loads):
        """`turns` and `loads` by iteration."""
        kind, routing, nodes = row.pop("kind"), row["routing"], row["nodes"]
        times = [max(said.ms for said in turn) for turn in turns]
        floors = [max(said.floor_ms for said in turn) for turn in turns]
        wires = [load.wire_bytes / self.settings["nic_gbytes"] / 1e6 for load in loads]
        bars = [shares.bars_ms(kind, routing, nodes, floor, wire) for floor, wire in zip(floors, wires)]
        ms = statistics.median(times)
        return {
            "op": "moe_layer" if shape.intermediate else "moe_dispatch_gemm", "name": shape.name, "model": shape.model, **row,
            "tokens": shape.tokens, "rows": shape.rows * self.meeting.world, "most_rows": statistics.median(load.most_rows for load in loads),
            "floor_rows_moved": max(load.moved for load in loads),
            "hidden": shape.hidden, "intermediate": shape.intermediate, "n": shape.n, "experts": shape.experts, "topk": shape.topk,
            "dtype": "bf16", "w_layout": "column_major", "how": self.clock.how, "world": self.meeting.world,
            "share": self.settings["ranks"], "sms": self.sms or None, "iterations": len(turns), "verified": True,
            "ms": ms, "min_ms": min(times), "max_ms": max(times), "tflops": shape.flops() * self.meeting.world / ms / 1e9,
            "floor_ms": statistics.median(floors), "floor_min_ms": min(floors), "floor_max_ms": max(floors),
            "of_floor": statistics.median(floor / took for floor, took in zip(floors, times)),
            "nic_gbytes": self.settings["nic_gbytes"] if nodes > 1 else None, "wire_ms": statistics.median(wires) if nodes > 1 else None,
            "bar_ms": statistics.median(bars), "of_bar": statistics.median(bar / took for bar, took in zip(bars, times)),
            "worst_of_tolerance_mkernel": max(said.off for turn in turns for said in turn),
            "worst_of_tolerance_floor": max(said.floor_off for turn in turns for said in turn)}


def line(row):
    """A row as a line of the table."""
    wire = f", wire {row['wire_ms']:.4f}" if row["wire_ms"] is not None else ""
    return (f"{row['name']:21} {row['routing']:9} | {row['of_floor']:.3f} of the floor, {row['of_bar']:.3f} of the bar | ms: ours {row['ms']:.4f} "
            f"({row['min_ms']:.4f} to {row['max_ms']:.4f}, {row['tflops']:.0f} TFLOP/s), floor {row['floor_ms']:.4f} "
            f"({row['floor_min_ms']:.4f} to {row['floor_max_ms']:.4f}){wire} | most loaded: {row['most_rows']:.0f} of {row['rows']} rows, "
            f"{row['iterations']} iterations")


def run(rank, settings):
    """Exit status: 1 if a case could not be measured or a result was wrong."""
    first = settings["rank"] == 0
    machine = {**settings["machine"], "torch": torch.__version__, "cuda": torch.version.cuda, "load_before": os.getloadavg()[0]}
    bad = False
    cases = settings["cases"]
    for number, case in enumerate(cases):
        now = rank.now()
        left = settings["stop_at"] - now
        try:
            if left < 5:
                raise measure.Wrong("left out, there is no time for it")
            row = rank.measure(case, now + left / (len(cases) - number))
        except (mkernel.Error, measure.Wrong) as error:  # the same on every rank, or the others miss this one at their next meeting
            bad = True
            if first:
                print(f"{case['name']:21} {case['routing']:9} | {type(error).__name__}: {error}", flush=True)
            continue
        finally:
            gc.collect()
            if settings["device"] == "cuda":
                torch.cuda.empty_cache()
        if first:
            print(line(row), flush=True)
            if settings["path"]:
                path = pathlib.Path(settings["path"])
                record_moe.add(path, {"date": time.strftime("%Y-%m-%d", time.gmtime()), **machine, "executor": settings["device"], **row})
    rank.meeting.barrier()
    return 1 if bad else 0


def main():
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    settings = json.loads(sys.argv[1])
    cuda = settings["device"] == "cuda"
    torch.set_float32_matmul_precision("highest")  # of what is wanted
    torch.manual_seed(1000 + settings["rank"])
    if cuda:
        torch.cuda.set_device(0)
    else:
        torch.set_num_threads(1)
    with contextlib.ExitStack() as stack, torch.no_grad():
        sessions = {int(nodes): stack.enter_context(mkernel.connect(socket, name="record_moe_shares", device=0 if cuda else -1))
                    for nodes, socket in settings["sockets"].items()}
        meeting = Meeting(sessions[1], settings)
        rank = Rank(settings, sessions, meeting, MeetingClock("events" if cuda else "host", meeting))
        sys.exit(run(rank, settings))


if __name__ == "__main__":
    main()
