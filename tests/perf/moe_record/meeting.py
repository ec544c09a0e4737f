"""Rank processes that are measured at the same time, on a GPU each or on one that they share: where they meet, and what each of them runs.
On SIGUSR1 they write where every thread is."""
import contextlib
import datetime
import faulthandler
import gc
import json
import os
import pathlib
import signal
import struct
import sys
import time

import torch
import torch.distributed as dist

import measure
import mkernel

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import record_moe  # noqa: E402

COPIES = 4           # multiprocessors for the daemons: copies from a GPU to itself are kernels
FEWEST = 3           # iterations, however little time there is
JOIN_TIMEOUT = 60.0  # seconds of joining a group, and of every wait for the other ranks
LARGEST = 448        # bytes that a rank can say at once


def sms_of_share(ranks):
    """Multiprocessors of each of so many ranks on this GPU; an even number."""
    return (torch.cuda.get_device_properties(0).multi_processor_count - COPIES) // ranks // 2 * 2


class Meeting:
    """All ranks, in a group that no operation of a case can end. start_line() brings the GPU's streams together: a launch of a very
    small operation, which ends on all ranks at about the same time."""

    def __init__(self, session, settings):
        self.rank, self.world = settings["rank"], settings["ranks"]
        self.group = session.join(f"meeting {settings['attempt']}", self.world, self.rank, timeout=JOIN_TIMEOUT)
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
        """What every rank says, by rank; as many bytes on each."""
        pieces = [self.group.exchange(said[begin : begin + LARGEST]) for begin in range(0, len(said), LARGEST)]
        return [b"".join(of_rank) for of_rank in zip(*pieces)]

    def now(self):
        """Rank 0's time, so that all decide alike."""
        return struct.unpack("d", self.exchange(struct.pack("d", time.time()))[0])[0]

    def start_line(self):
        if self.launch is None:
            self.barrier()
        else:
            self.launch.enqueue(torch.cuda.current_stream().cuda_stream)


class MeetingClock(measure.Clock):
    """Nothing else runs on the GPU while a launch is timed, and no rank that shares it loads a kernel: that could wait for a kernel
    which waits for this rank."""

    def __init__(self, how, meeting, **options):
        super().__init__(how, **options)
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


def run(name, rank_of, line, **clock_options):
    """The whole of a rank process; its argument is SETTINGS, which are JSON and of processes.run(). Ends the process: status 1 if a case
    could not be measured or a result was wrong. `rank_of`(settings, sessions, meeting, clock, device) has measure(), for
    measure_all(); `line` makes the text of a row."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    settings = json.loads(sys.argv[1])
    cuda = settings["device"] == "cuda"
    torch.set_float32_matmul_precision("highest")  # of what is wanted
    torch.manual_seed(1000 + settings["rank"])
    device = torch.device("cuda", 0 if settings["share"] else settings["rank"]) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    with contextlib.ExitStack() as stack, torch.no_grad():
        stack.enter_context(torch_ranks(settings, device))
        sessions = {int(nodes): stack.enter_context(mkernel.connect(socket, name=name, device=device.index if cuda else -1))
                    for nodes, socket in settings["sockets"].items()}
        meeting = Meeting(sessions[1], settings)
        clock = MeetingClock("events" if cuda else "host", meeting, **clock_options)
        status = measure_all(rank_of(settings, sessions, meeting, clock, device), settings, line)
    sys.exit(status)


@contextlib.contextmanager
def torch_ranks(settings, device):
    """PyTorch's process group, with the backend of the settings, or nothing without one."""
    if settings["backend"]:
        dist.init_process_group(settings["backend"], init_method=f"tcp://127.0.0.1:{settings['port']}", rank=settings["rank"],
                                world_size=settings["ranks"], timeout=datetime.timedelta(seconds=JOIN_TIMEOUT),
                                device_id=device if device.type == "cuda" else None)
    yield
    if settings["backend"]:
        dist.destroy_process_group()


def measure_all(rank, settings, line):
    """Measures the cases of `settings` one after the other, and prints and records their rows on rank 0. Exit status.
    rank.measure() takes a case and the time after which it is to do no more than it must, and returns (its row, whether all that
    was to be measured was). It raises on every rank or on none."""
    first = settings["rank"] == 0
    machine = {**settings["machine"], "torch": torch.__version__, "cuda": torch.version.cuda, "load_before": os.getloadavg()[0]}
    bad = False
    cases = settings["cases"]
    for number, case in enumerate(cases):
        now = rank.meeting.now()
        left = settings["stop_at"] - now
        if first:
            pathlib.Path(settings["progress"]).write_text(str(number))
        try:
            if left < 5:
                raise measure.Wrong("left out, there is no time for it")
            row, complete = rank.measure(case, now + min(left / (len(cases) - number), settings["row_seconds"] / 2))
            bad = bad or not complete
        except (mkernel.Error, measure.Wrong) as error:  # the same on every rank, or the others miss this one at their next meeting
            bad = True
            if first:
                print(f"{case['name']:21} {case.get('routing', ''):10} | {type(error).__name__}: {error}", flush=True)
            continue
        finally:
            gc.collect()
            if settings["device"] == "cuda":
                torch.cuda.empty_cache()
        if first:
            print(line(row), flush=True)
            if settings["path"]:
                day = time.strftime("%Y-%m-%d", time.gmtime())
                record_moe.add(pathlib.Path(settings["path"]), {"date": day, **machine, "executor": settings["device"], **row})
    rank.meeting.barrier()
    if first:
        pathlib.Path(settings["progress"]).write_text(str(len(cases)))
    return 1 if bad else 0
