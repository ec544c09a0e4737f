"""Prints what a call of an operator costs on the host without the library: one rank, small operands, the library's launch stubbed.
short_way() does so for the way of calls on tensors of a GPU, with CUDA stubbed as well: with the extension in C++ where a build of it is
found, and without it if the environment says MKERNEL_TORCH_EXTENSION=0.

    RANK=0 WORLD_SIZE=1 SOCKET=... MASTER_ADDR=127.0.0.1 MASTER_PORT=... python rank.py torch_overhead overhead"""
import ctypes
import statistics
import time
import timeit

from torch_rank import dist, end, operand, start, torch
from torch_short_scenarios import on_host, queued_by_extension

import mkernel.operations
from mkernel.torch import _extension, _run


def microseconds(call, count=4000, before=lambda: None):
    """The median; `before` is called each time, and not measured."""
    times = []
    for _ in range(count):
        before()
        begin = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - begin)
    return statistics.median(times) / 1000


def overhead():
    name = start()
    a, weight = operand(1, 0, (8, 16)), operand(2, 0, (16, 16))
    b, bias = weight.t(), weight.clone().requires_grad_()
    ops = torch.ops.mkernel

    def inferred():
        with torch.inference_mode():
            ops.fused_all_gather_matmul(a, [b], 0, name, return_A=False)

    calls = {
        "all_gather_matmul": lambda: ops.fused_all_gather_matmul(a, [b], 0, name, return_A=False),
        "matmul_reduce_scatter": lambda: ops.fused_matmul_reduce_scatter(a, b, "sum", 0, name),
        "matmul_all_reduce": lambda: ops.fused_matmul_all_reduce(a, b, "sum", name),
        "all_gather_matmul, padded": lambda: ops.fused_all_gather_matmul(padded, [b], 0, name, return_A=False),
        "all_gather_matmul, for autograd": lambda: ops.fused_all_gather_matmul(a, [bias.t()], 0, name, return_A=False),
        "all_gather_matmul, in inference mode": inferred,
        "all_gather_matmul, below torch's dispatcher": lambda: _run.all_gather_matmul(a, [b], 0, name, return_A=False),
        "torch.mm, for comparison": lambda: torch.mm(a, b),
    }
    padded = operand(1, 0, (17, 16))
    for call in calls.values():
        call()
    for what, call in calls.items():
        print(f"with the library     {what}: p50 {microseconds(call, 1000):.1f} us")
    real = mkernel.operations.Pending.wait
    mkernel.operations.Pending.wait = lambda *_: None
    membership = next(iter(mkernel.torch._groups._State.by_ranks.values()))
    plans = membership.plans._plans.values()
    for plan in plans:
        for launch in plan._launches.values():
            launch._launch = lambda *_: 0

    def without(call):
        def run():
            call()
            for plan in plans:
                plan.operation._handle.in_flight.clear()

        return run

    time.sleep(3)  # the daemon polls for a while after the last launch, and would take a core
    empty = microseconds(without(lambda: None))
    for what, call in calls.items():
        print(f"without the library  {what}: p50 {min(microseconds(without(call)) for _ in range(3)) - empty:.1f} us")
    mkernel.operations.Pending.wait = real
    dist.barrier()


def least(call, repeat=3000, number=10):
    """Microseconds of a call when nothing disturbs it: for machines that others use, too."""
    return min(timeit.repeat(call, repeat=repeat, number=number)) / number * 1e6


def short_way():
    name = start()
    a, bs = operand(1, 0, (8, 16)), [operand(2 + index, 0, (16, 16)).t() for index in range(3)]
    ops = torch.ops.mkernel
    calls = {
        "all_gather_matmul": lambda: ops.fused_all_gather_matmul(a, bs[:1], 0, name, return_A=False),
        "all_gather_matmul, A returned": lambda: ops.fused_all_gather_matmul(a, bs[:1], 0, name),
        "all_gather_matmul of three B": lambda: ops.fused_all_gather_matmul(a, bs, 0, name, return_A=False),
        "matmul_reduce_scatter": lambda: ops.fused_matmul_reduce_scatter(a, bs[0], "sum", 0, name),
        "matmul_all_reduce": lambda: ops.fused_matmul_all_reduce(a, bs[0], "sum", name),
        "torch.mm, for comparison": lambda: torch.mm(a, bs[0]),
        "an allocation, for comparison": lambda: a.new_empty((8, 16)),
    }
    nothing = ctypes.CDLL(None)["pthread_equal"]  # 0 for two addresses that differ: the cost of a call alone
    extension, address = _extension.extension, _extension.address_of(nothing)
    print("with the extension in C++" if extension else "without the extension in C++")
    with queued_by_extension(address, address) if extension else on_host(nothing):
        for what, call in calls.items():
            call()
            text = f"{least(call):.2f} us"
            with torch.inference_mode():
                text += f", in inference mode {least(call):.2f} us"
            print(f"{what}: {text}", flush=True)
    end()
