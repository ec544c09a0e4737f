"""Prints what a call of an operator on CUDA tensors takes on the host, and what one takes on the GPU when a graph replays it, beside the
library's own launches in a graph: one rank, which has the GPU to itself.

Everything is called once before anything is measured, and then measured in turns, in another order each time: what is measured first
after a process has started, or in a slow moment of the machine, would look slower than it is. (AG+GEMM, which came first, did.)
The first line says whether the extension in C++ takes the calls."""
import contextlib
import functools
import random
import statistics

from torch_gpu_rank import GPU, begin, call, on_gpu
from torch_overhead import microseconds
from torch_rank import counted, end, torch

import mkernel.torch
from mkernel.torch import _extension

OPS = torch.ops.mkernel
ROUNDS, CALLS, LAUNCHES = 9, 200, 20


def in_turns(measures):
    """What each of `measures` returns, by its name, ROUNDS times."""
    found = {what: [] for what in measures}
    order = list(measures)
    for _ in range(ROUNDS):
        random.shuffle(order)
        for what in order:
            found[what].append(measures[what]())
    return found


def idle(function, mode=contextlib.nullcontext):
    """Measures `function` with an idle GPU."""
    def measure():
        with mode():
            return microseconds(function, CALLS, torch.cuda.synchronize)

    return measure


def one_more(function):
    """Measures what one call more in compiled code takes. The first calls of both are made here."""
    one = torch.compile(lambda: [function()], fullgraph=True)
    ten = torch.compile(lambda: [function() for _ in range(10)], fullgraph=True)
    with torch.no_grad():
        call(one)
        call(ten)
    measure_one, measure_ten = idle(one, torch.no_grad), idle(ten, torch.no_grad)
    return lambda: (measure_ten() - measure_one()) / 9


def bound(function, **operands):
    """The library's launch of what `function`, whose first call is made here, calls: with operands that are kept."""
    plans = next(iter(mkernel.torch._groups._State.by_ranks.values())).plans._plans
    before = set(plans)
    call(function)
    key, = set(plans) - before
    operation = plans[key].operation
    launch = operation._bind(operation.Arguments(), (), None, 0)
    addresses = {field: tensor.data_ptr() for field, tensor in operands.items()}
    launch.set_addresses(**addresses)
    if key.more_n:
        launch.set_addresses(more_b=(addresses["b"],) * len(key.more_n), more_c=(addresses["c"],) * len(key.more_n))
    launch._owners = list(operands.values())
    return launch


def library_alone(function):
    """Measures the library's part of `function`."""
    return idle(bound(function, **{field: on_gpu(3, 0, (256, 256)) for field in "abc"}).enqueue)  # larger than any operand


def replayed(function):
    """Measures `function` on the GPU, in a graph of LAUNCHES calls: milliseconds of one."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES):
            function()

    def measure():
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / LAUNCHES

    return measure


def print_replays(name):
    """Of an operator, and of the library's launches, which is what a program in C++ replays."""
    a, b = on_gpu(1, 0, (4096, 4096)), on_gpu(2, 0, (4096, 4096))
    operator = functools.partial(OPS.fused_matmul_reduce_scatter, a, b, "sum", 0, name)
    launch = bound(operator, a=a, b=b, c=torch.empty_like(a))
    times = in_turns({"operator": replayed(operator),
                      "library": replayed(lambda: launch.enqueue(torch.cuda.current_stream().cuda_stream))})
    for what, taken in times.items():
        print(f"gemm_rs 4096 x 4096 x 4096, one rank, in a graph, {what}: p50 {statistics.median(taken):.4f} ms "
              f"({min(taken):.4f} to {max(taken):.4f})", flush=True)


def overhead():
    name = begin()
    a, b = on_gpu(1, 0, (128, 256)), on_gpu(2, 0, (256, 128)).t().contiguous().t()
    calls = {
        "fused_all_gather_matmul": lambda: OPS.fused_all_gather_matmul(a, [b], 0, name, return_A=False),
        "fused_all_gather_matmul of three B": lambda: OPS.fused_all_gather_matmul(a, [b] * 3, 0, name, return_A=False),
        "fused_matmul_reduce_scatter": lambda: OPS.fused_matmul_reduce_scatter(a, b, "sum", 0, name),
        "fused_matmul_all_reduce": lambda: OPS.fused_matmul_all_reduce(a, b, "sum", name),
        "torch.mm, for comparison": lambda: torch.mm(a, b),
    }
    measures = {}
    for what, function in calls.items():
        ours = "torch.mm" not in what
        if ours:
            measures[f"{what}: the library alone"] = library_alone(function)
            measures[f"{what}: one more in compiled code"] = one_more(function)
        call(function)
        measures[what] = idle(function)
        measures[f"{what}: without autograd"] = idle(function, torch.no_grad)
        measures[f"{what}: in inference mode"] = idle(function, torch.inference_mode)
    print(f"{'with' if _extension.extension else 'without'} the extension in C++:", flush=True)
    for what, times in sorted(in_turns(measures).items()):
        print(f"{what}: p50 {statistics.median(times):.1f} us ({min(times):.1f} to {max(times):.1f} in {ROUNDS} rounds)", flush=True)
    taken = sum(_extension.extension.taken().values()) if _extension.extension else 0
    assert not _extension.extension or taken > 4 * ROUNDS * CALLS, f"the extension took {taken} calls"
    print_replays(name)
    peak = torch.cuda.memory_stats()["num_device_alloc"]
    changed = counted(calls["fused_matmul_all_reduce"])
    assert torch.cuda.memory_stats()["num_device_alloc"] == peak, changed
    end()
