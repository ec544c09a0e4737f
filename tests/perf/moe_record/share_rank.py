"""One rank of record_moe_shares.py: share_rank.py SETTINGS, which are JSON. On SIGUSR1 it writes where every thread is."""
import contextlib
import statistics
import struct
import time
from typing import NamedTuple

import torch

import chain
import layer
import measure
import mkernel
import rank_cases
import shares
from meeting import FEWEST, JOIN_TIMEOUT, run, sms_of_share


class Outcome(NamedTuple):
    """Of one iteration and rank; times and errors by contender."""

    ms: list
    offs: list   # the largest errors over their tolerances
    failed: int  # the contender that `problem` is of; -1: none
    now: float
    problem: str

    TEXT = 400  # bytes of `problem`

    def packed(self):
        numbers = (*self.ms, *self.offs, self.failed, self.now)
        return struct.pack(f"{len(numbers)}d{self.TEXT}s", *numbers, self.problem.encode()[: self.TEXT])

    @classmethod
    def of(cls, said):
        text = said[-cls.TEXT :].rstrip(b"\0").decode(errors="replace")
        *numbers, failed, now = struct.unpack(f"{(len(said) - cls.TEXT) // 8}d", said[: -cls.TEXT])
        half = len(numbers) // 2
        return cls(numbers[:half], numbers[half:], int(failed), now, text)


class Load(NamedTuple):
    """Of one iteration."""

    rows: int        # of all ranks
    most_rows: int   # of the most loaded rank
    moved: int       # of these, those that are another expert's of the rank in its floor
    wire_bytes: int  # of the rank that sends or receives most

    @classmethod
    def of(cls, share, floor):
        sums = list(map(sum, share.rows))
        most = sums.index(max(sums))
        return cls(sum(sums), sums[most], floor.moved(most), share.wire_bytes())


class Contest:
    """The operation of all ranks, the floor of each, and PyTorch's chains, in turns. A chain that fails on any rank has no further
    turn; `dropped` says why."""

    def __init__(self, clock, meeting, group, ours, floor, chains):
        self.clock, self.meeting, self.group, self.contenders = clock, meeting, group, [ours, floor, *chains]
        self.dropped = {}

    def turn(self, number):
        """The outcomes of all ranks. Error: measure.Wrong, on all of them."""
        said = self._measured(number)
        all_said = [Outcome.of(one) for one in self.meeting.exchange(said.packed())]
        problems = {}
        for rank, one in enumerate(all_said):
            if one.failed >= 0:
                problems.setdefault(self.contenders[one.failed], []).append(f"rank {rank}: {one.problem}")
        for contender, texts in problems.items():
            if isinstance(contender, measure.Launched):
                raise measure.Wrong("; ".join(texts))
            self.dropped[contender.name] = "; ".join(texts)
        return all_said

    def _measured(self, number):
        count = len(self.contenders)
        times, offs, failed, problem = [float("nan")] * count, [float("inf")] * count, -1, ""
        with self.group.keep_active():  # launches that are queued and put cannot wake the daemon
            for which in ((number + step) % count for step in range(count)):
                contender = self.contenders[which]
                if contender.name in self.dropped:
                    continue
                try:
                    times[which], offs[which] = measure.checked(contender.case, contender, contender, self.clock)
                except (mkernel.Error, measure.Wrong, RuntimeError) as error:  # the last one is PyTorch's
                    if failed < 0 or not isinstance(self.contenders[failed], measure.Launched):
                        own = isinstance(error, measure.Wrong)  # which says who
                        failed, problem = which, str(error) if own else f"{contender.name}: {type(error).__name__}: {error}"
        return Outcome(times, offs, failed, time.time(), problem)


class Rank:
    def __init__(self, settings, sessions, meeting, clock, device):
        self.settings, self.sessions, self.meeting, self.clock, self.device = settings, sessions, meeting, clock, device
        self.sms = settings["sms"]
        if self.sms == 0 and settings["share"] and device.type == "cuda":
            self.sms = sms_of_share(settings["ranks"])

    def measure(self, case, until):
        """(The row of a case, whether its chain was measured where it was to be); more than the fewest iterations only before `until`."""
        case = rank_cases.Case(**case)
        shape = shares.shape_of(case)
        if self.device.type == "cpu":
            shape = layer.small(shape)
        rank, world, executor = self.meeting.rank, self.meeting.world, self.device.type
        share = shares.ShareCase(shape, case, self.device, self.meeting, torch.Generator().manual_seed(1))
        floor = shares.floor_of(share, case)
        chains = chain.chains_of(share) if case.chain and self.settings["backend"] else []
        options = {"sms": self.sms} if self.sms else {}
        with contextlib.ExitStack() as stack:  # a launch that fails ends its group: the next case has others
            groups = [stack.enter_context(session.join(f"{case.name} {case.routing} {of_which}", *membership, timeout=JOIN_TIMEOUT))
                      for session, of_which, membership in ((self.sessions[case.nodes], "all", (world, rank)),
                                                            (self.sessions[1], f"floor {rank}", (1, 0)))]
            ours = measure.Ours(share, groups[0], executor, capacity=share.capacity, **options)
            stack.callback(ours.close)
            alone = measure.Ours(floor, groups[1], executor, name="floor", **options)
            stack.callback(alone.close)
            expected = ours.operation.expected_seconds()
            contest = Contest(self.clock, self.meeting, groups[0], ours, alone, chains)
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
        more = {"expected_ms": None if expected is None else 1e3 * expected, "capacity": share.capacity, "floor": floor.op,
                "floor_topk": case.floor_topk or None, "how": self.clock.how, "sms": self.sms or None}
        row = row_of(case, shape, self.settings, loads, _by_contender(contest, turns), more)
        return row, not (case.chain and self.settings["backend"] and row["left_out"])


def _by_contender(contest, turns):
    """{name: ([milliseconds of the slowest rank, by iteration], largest error over its tolerance)} of those that took part in all of
    them, and "left_out": {name: why} of the others."""
    found = {"left_out": contest.dropped}
    for which, contender in enumerate(contest.contenders):
        if contender.name not in contest.dropped:
            slowest = [max(said.ms[which] for said in turn) for turn in turns]
            found[contender.name] = slowest, max(said.offs[which] for turn in turns for said in turn)
    return found


def row_of(case, shape, settings, loads, contenders, more):
    """`loads` by iteration."""
    world, nodes, left_out = settings["ranks"], case.nodes, contenders.pop("left_out")
    if nodes > 1:
        left_out = {"chain": "NCCL would go over NVLink where the emulated wire is"}
    elif settings["share"]:
        left_out = {"chain": "NCCL needs a GPU for each rank"}
    times, floors = contenders["mkernel"][0], contenders["floor"][0]
    # Dispatch+GEMM is held to the first half of the chain.
    rival = next((contenders[name][0] for name in ("half_chain", "chain") if name in contenders), [None] * len(times))
    wires = [load.wire_bytes / settings["nic_gbytes"] / 1e6 for load in loads]
    flops = [shape.flops() * load.rows / shape.rows / (1 if settings["share"] else world) for load in loads]  # of a GPU
    bars = [case.bar_ms(*of_iteration) for of_iteration in zip(flops, floors, wires, rival)]
    row = {
        "op": "moe_layer" if shape.intermediate else "moe_dispatch_gemm", "name": case.name, "model": case.model, "routing": case.routing,
        "nodes": nodes, **more, "tokens": shape.tokens, "rows": loads[0].rows,
        "most_rows": statistics.median(load.most_rows for load in loads), "floor_rows_moved": max(load.moved for load in loads),
        "hidden": shape.hidden, "intermediate": shape.intermediate, "n": shape.n, "experts": shape.experts, "topk": shape.topk,
        "dtype": "bf16", "w_layout": "column_major", "world": world, "share": settings["share"] or None, "iterations": len(loads),
        "verified": True, "tflops": statistics.median(of_gpu / took / 1e9 for of_gpu, took in zip(flops, times)),
        "of_floor": statistics.median(floor / took for floor, took in zip(floors, times)),
        "nic_gbytes": settings["nic_gbytes"] if nodes > 1 else None, "wire_ms": statistics.median(wires) if nodes > 1 else None,
        "bar_tflops": case.bar_tflops, "bar_over_chain": case.bar_over_chain, "bar_times_floor": case.bar_times_floor,
        "bar_more_us": case.bar_more_us, "bar_ms": None if None in bars else statistics.median(bars),
        "of_bar": None if None in bars else statistics.median(bar / took for bar, took in zip(bars, times)), "left_out": left_out}
    for name, (taken, worst) in contenders.items():
        prefix = "" if name == "mkernel" else f"{name}_"
        row |= {f"{prefix}ms": statistics.median(taken), f"{prefix}min_ms": min(taken), f"{prefix}max_ms": max(taken),
                f"worst_of_tolerance_{name}": worst}
        if name not in ("mkernel", "floor"):
            row[f"speedup_over_{name}"] = statistics.median(theirs / took for theirs, took in zip(taken, times))
    return row


def line(row):
    """A row as a line of the table."""
    verdict = f"{row['of_floor']:.3f} of the floor"
    if row["of_bar"] is not None:
        verdict += f", {row['of_bar']:.3f} of the bar"
    chains = [name for name in ("chain", "half_chain") if f"{name}_ms" in row]
    for name in chains:
        verdict += f", {row[f'speedup_over_{name}']:.2f} x {name}"
    times = ", ".join(f"{name} {row[f'{prefix}ms']:.4f} ({row[f'{prefix}min_ms']:.4f} to {row[f'{prefix}max_ms']:.4f})"
                      for name, prefix in (("ours", ""), ("floor", "floor_"), *((name, f"{name}_") for name in chains)))
    wire = f", wire {row['wire_ms']:.4f}" if row["wire_ms"] is not None else ""
    left_out = "".join(f"\n    {name} is left out: {why}" for name, why in row["left_out"].items() if not row["share"])
    return (f"{row['name']:21} {row['routing']:10} | {verdict} | {row['tflops']:.0f} TFLOP/s | ms: {times}{wire} | most loaded: "
            f"{row['most_rows']:.0f} of {row['rows']} rows, {row['iterations']} iterations{left_out}")


if __name__ == "__main__":
    run("record_moe_shares", Rank, line)
