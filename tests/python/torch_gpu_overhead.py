"""Prints what a call of an operator on CUDA tensors takes on the host, and a launch in a graph: one rank, which has the GPU to itself.

Everything is called once before anything is measured, and then measured in turns, in another order each time: what is measured first
after a process has started, or in a slow moment of the machine, would look slower than it is. (AG+GEMM, which came first, did.)
The first line says whether the extension in C++ takes the calls."""
import contextlib
import random
import statistics

from torch_gpu_rank import GPU, begin, call, on_gpu
from torch_overhead import microseconds
from torch_rank import counted, end, torch

import mkernel.torch
from mkernel.torch import _extension

OPS = torch.ops.mkernel
ROUNDS, CALLS = 9, 200


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


def library_alone(function):
    """Measures the library's part of `function`, whose first call is made here: its launch, with operands that are kept."""
    plans = next(iter(mkernel.torch._groups._State.by_ranks.values())).plans._plans
    before = set(plans)
    call(function)
    key, = set(plans) - before
    memory = [torch.empty(256, 256, dtype=torch.bfloat16, device=GPU) for _ in range(3)]  # larger than any operand
    a, b, c = (tensor.data_ptr() for tensor in memory)
    operation = plans[key].operation
    launch = operation._bind(operation.Arguments(), (), None, 0)
    launch.set_addresses(a=a, b=b, c=c)
    if key.more_n:
        launch.set_addresses(more_b=(b,) * len(key.more_n), more_c=(c,) * len(key.more_n))
    launch._owners = memory
    return idle(launch.enqueue)


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
    big, weight = on_gpu(1, 0, (4096, 4096)), on_gpu(2, 0, (4096, 4096))
    graph = torch.cuda.CUDAGraph()
    call(OPS.fused_matmul_reduce_scatter, big, weight, "sum", 0, name)
    with torch.cuda.graph(graph):
        for _ in range(20):
            OPS.fused_matmul_reduce_scatter(big, weight, "sum", 0, name)
    times = []
    for _ in range(20):
        ends = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        ends[0].record()
        graph.replay()
        ends[1].record()
        torch.cuda.synchronize()
        times.append(ends[0].elapsed_time(ends[1]) / 20)
    print(f"gemm_rs 4096 x 4096 x 4096, one rank, in a graph: {statistics.median(times):.4f} ms", flush=True)
    peak = torch.cuda.memory_stats()["num_device_alloc"]
    changed = counted(calls["fused_matmul_all_reduce"])
    assert torch.cuda.memory_stats()["num_device_alloc"] == peak, changed
    end()
