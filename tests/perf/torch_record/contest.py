"""Contenders in turns, within one process: every timed call begins on all ranks together, has new inputs, and is verified."""
import math

import torch

import mkernel.torch


class Case:
    """What is measured.

    `contenders`: by name a function that returns its results as a list, or a text: why it is left out. One named "product" is the
    floor, a product without communication, and is not verified."""

    contenders: dict

    def renew(self):
        """Makes new inputs, and computes what is wanted of them."""

    def refresh(self):
        """Puts the inputs where the contenders read them: each finds the same of them in the cache."""

    def worst(self, results):
        """The largest error over its tolerance, as a tensor."""


def run(job, case, what, hows, iterations):
    """Writes a row for each of `hows`: "eager" and "graph" (one call captured, and replayed)."""
    calls = {name: call for name, call in case.contenders.items() if callable(call)}
    left_out = {name: call for name, call in case.contenders.items() if not callable(call)}
    case.renew()
    case.refresh()
    job.synchronize()
    for name, call in list(calls.items()):
        job.at(f"{what}: first calls of {name}")
        error = job.agree(job.attempt(lambda: _first(job, call))[1])
        if error is not None:
            left_out[name] = error
            del calls[name]
    for how in hows:
        mkernel.torch.reset_counters()
        errors, ready = dict(left_out), {}
        for name, call in calls.items():
            if how == "eager":
                ready[name] = call
                continue
            job.at(f"{what}: captures {name}")
            ready[name], error = job.attempt(lambda: _captured(call))
            error = job.agree(error)
            if error is not None:
                errors[name] = f"not captured: {error}"
                del ready[name]
        job.at(f"{what}: measures, {how}")
        taken = _measure(job, case, ready, errors, iterations)
        counters = mkernel.torch.counters()
        fell_back = "mkernel" in taken and (bool(counters["fallbacks"]) or not counters.get("launches"))
        job.row(what=what, how=how, contenders=taken, errors=errors, fell_back=fell_back,
                counters={key: counters.get(key, 0) for key in ("launches", "padded", "copies", "fallbacks")})
        ready.clear()  # and the graphs with it


def _first(job, call):
    with job.rehearsal():
        call()
    job.synchronize()
    job.exchange(None)
    for _ in range(2):
        call()
    job.synchronize()
    mkernel.torch.synchronize()


def _captured(call):
    graph = torch.cuda.CUDAGraph()
    # NCCL's watchdog of PyTorch calls CUDA from a thread of its own, which would end a capture that minds all threads.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        results = call()

    def replay():
        graph.replay()
        return results

    replay()
    return replay


def _measure(job, case, ready, errors, iterations):
    """By contender the milliseconds and the microseconds on the host of every iteration, and the largest error over its tolerance."""
    names = list(ready)
    taken = {name: {"ms": [], "host_us": [], "worst": 0.0} for name in names}
    for iteration in range(iterations):
        case.renew()
        job.synchronize()
        job.exchange(None)
        failed = {}
        first = iteration % max(1, len(names))
        for name in names[first:] + names[:first]:
            case.refresh()
            answer, error = job.attempt(lambda: _one(job, case, name, ready[name]))
            if error is not None:
                failed[name] = error
                continue
            for key, value in zip(("ms", "host_us"), answer):
                taken[name][key].append(value)
            taken[name]["worst"] = max(taken[name]["worst"], answer[2])
        for rank, theirs in enumerate(job.exchange(failed)):
            for name, text in theirs.items():
                errors.setdefault(name, f"rank {rank}: {text}")
        names = [name for name in names if name not in errors]
    return {name: taken[name] for name in names}


def _one(job, case, name, call):
    results, (begin, end), host_us = job.timed(call)
    job.synchronize()
    if name == "mkernel":
        mkernel.torch.synchronize()  # raises what the replay of a graph does not
    worst = 0.0 if name == "product" else float(case.worst(results))
    return begin.elapsed_time(end), host_us, worst if not math.isnan(worst) else math.inf
