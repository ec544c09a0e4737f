"""Operations of mkernel and collectives of NCCL at the same time, on two streams of one process, for a while: do they let each other
finish, and are all results right?

A launch of mkernel needs all its multiprocessors at once, and waits on them for other ranks; so does NCCL. sm_margin leaves room for the
CTAs of NCCL, which NCCL_MAX_CTAS bounds: twice as many multiprocessors, because a CTA of NCCL that has one of a pair takes the pair from
our clusters of two. Every other rank queues the two in the opposite order, which without room ends in ranks that wait for each other."""
import time

import torch
import torch.distributed as dist

import mkernel.torch
import operators
from job import NEEDS_GPUS

SETS = 3  # of inputs, with what is wanted of them
CALLS = 6  # of either kind in a round
WORDS = 1 << 24  # of an all-reduce


class Ours:
    """Each of the three operators in turn, on inputs whose results NCCL and cuBLAS have computed while nothing ran beside them."""

    def __init__(self, job, m, n, k):
        self.cases = [kind(job, m, k, (n,)) for kind in operators.OPERATIONS.values() for _ in range(SETS)]
        for case in self.cases:
            case.renew()
            case.refresh()
        self.worst = torch.zeros((), device=job.device)

    def call(self, number):
        case = self.cases[number * (SETS + 1) % len(self.cases)]
        self.worst = torch.maximum(self.worst, case.worst(case.mkernel()))


class Theirs:
    """All-reduces of whole numbers, whose sums are exact."""

    def __init__(self, job):
        self.inputs = [torch.randint(-(2**20), 2**20, (WORDS,), dtype=torch.int32, device=job.device) for _ in range(SETS)]
        self.wanted = []
        for words in self.inputs:
            parts = torch.empty(job.world, WORDS, dtype=torch.int32, device=job.device)
            dist.all_gather_into_tensor(parts.view(-1), words)
            self.wanted.append(parts.sum(0, dtype=torch.int32))
        self.wrong = torch.zeros((), dtype=torch.int64, device=job.device)

    def call(self, number):
        words = self.inputs[number % SETS].clone()
        dist.all_reduce(words)
        self.wrong += (words != self.wanted[number % SETS]).sum()


def run(job):
    seconds = job.settings["beside_seconds"]
    ctas = job.settings["nccl_max_ctas"]
    m, n, k = (512, 1024, 1024) if job.small else (4096, 8192, 8192)
    what = {"m": m, "n": n, "k": k, "all_reduce_bytes": 4 * WORDS, "nccl_max_ctas": ctas, "sm_margin": 2 * ctas}
    if not job.nccl:
        job.row(what=what, left_out=NEEDS_GPUS)
        return
    mkernel.torch.set_options(sm_margin=2 * ctas)
    streams = [torch.cuda.Stream() for _ in range(2)]
    with torch.no_grad():
        sides = [Ours(job, m, n, k), Theirs(job)]
        queue = list(zip(streams, sides))
        if job.rank % 2:
            queue.reverse()
        job.synchronize()
        number = 0
        alone = []
        for one in zip(streams, sides):  # what they load they load while nothing runs beside them
            times = []
            for _ in range(5):
                times.append(_round(job, [one], number))
                number += CALLS
            alone.append(min(times))
        job.at(f"beside: {seconds} seconds")
        rounds, together, end = 0, [], time.monotonic() + seconds
        while job.exchange(time.monotonic() < end)[0] and job.enough_time():
            together.append(_round(job, queue, number))
            number += CALLS
            rounds += 1
            if rounds % 100 == 0:
                job.at(f"beside: {rounds} rounds")
    took = seconds - max(0.0, end - time.monotonic())
    job.row(what=what, seconds=took, rounds=rounds, operations=rounds * CALLS, collectives=rounds * CALLS,
            worst=float(sides[0].worst), wrong_words=int(sides[1].wrong), operations_alone_ms=alone[0], collectives_alone_ms=alone[1],
            together_ms=sorted(together)[len(together) // 2] if together else None)


def _round(job, queue, number):
    """Queues CALLS of each, one after the other in turns, and waits for all; milliseconds. Errors of ours are raised."""
    job.exchange(None)
    before = time.perf_counter()
    for call in range(number, number + CALLS):
        for stream, side in queue:
            with torch.cuda.stream(stream):
                side.call(call)
    for stream, _ in queue:
        stream.synchronize()
    took = 1e3 * (time.perf_counter() - before)
    mkernel.torch.synchronize()
    return took
