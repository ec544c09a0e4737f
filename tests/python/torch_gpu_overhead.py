"""Prints what a call of an operator on CUDA tensors takes on the host, and a launch in a graph: one rank, which has the GPU to itself."""
import statistics

from torch_gpu_rank import GPU, begin, call, on_gpu
from torch_overhead import microseconds
from torch_rank import counted, end, torch

import mkernel.torch

OPS = torch.ops.mkernel


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

    def of(function):
        return microseconds(function, 1000, torch.cuda.synchronize)

    for what, function in calls.items():
        call(function)
        text = f"{what}: p50 {of(function):.1f} us"
        with torch.no_grad():
            text += f", without autograd {of(function):.1f} us"
        with torch.inference_mode():
            text += f", inference mode {of(function):.1f} us"
        if "torch.mm" not in what:
            ten = torch.compile(lambda: [function() for _ in range(10)], fullgraph=True)
            one = torch.compile(lambda: [function()], fullgraph=True)
            with torch.no_grad():
                call(one)
                call(ten)
                text += f", one more in compiled code {(of(ten) - of(one)) / 9:.1f} us"
        print(text, flush=True)
    membership = next(iter(mkernel.torch._groups._State.by_ranks.values()))
    launch = next(iter(membership.plans._plans.values())).launch(mkernel.torch._options.current())  # the first: of ag_gemm
    c = torch.empty(128, 128, dtype=a.dtype, device=GPU)
    launch.set_addresses(a=a.data_ptr(), b=b.data_ptr(), c=c.data_ptr(), gathered=0)
    print(f"the library alone: p50 {of(launch.enqueue):.1f} us", flush=True)
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
