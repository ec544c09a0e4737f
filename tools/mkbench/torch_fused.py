#!/usr/bin/env python3
"""Times torch's fused operations over symmetric memory (one node): what `mkbench op --baseline torch` starts once per rank.

Usage: torch_fused.py --rank R --world W --port P --device D --iterations N op:MxNxK:dtype ...
Rank 0 prints a JSON list, one entry per shape: the median over iterations of the slowest rank's milliseconds, or null where
torch has no such operation or refuses the shape (it says why on stderr). GEMM+AR is a product into symmetric memory and
torch's all-reduce of it. Several sets of random operands go by in turn.
"""
import argparse
import json
import os
import statistics
import sys

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm

TYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
SETS = 3


def operation(op, m, n, k, dtype, group):
    """A function of the set's number that launches the operation."""
    world = dist.get_world_size()
    if m % world:
        raise ValueError(f"m = {m} does not divide by {world} ranks")
    rand = lambda *size: torch.rand(*size, device="cuda", dtype=dtype) * 2 - 1
    b = [rand(k, n) for _ in range(SETS)]
    if op == "ag_gemm":
        a = [rand(m // world, k) for _ in range(SETS)]
        return lambda i: torch.ops.symm_mem.fused_all_gather_matmul(a[i], [b[i]], gather_dim=0, group_name=group)
    a = [rand(m, k) for _ in range(SETS)]
    if op == "gemm_rs":
        return lambda i: torch.ops.symm_mem.fused_matmul_reduce_scatter(a[i], b[i], "sum", scatter_dim=0, group_name=group)
    c = symm.empty(m, n, device="cuda", dtype=dtype)
    symm.rendezvous(c, group)

    def all_reduce(i):
        torch.matmul(a[i], b[i], out=c)
        torch.ops.symm_mem.two_shot_all_reduce_(c, "sum", group)
    return all_reduce


def measure(launch, iterations):
    for i in range(4):
        launch(i % SETS)
    torch.cuda.synchronize()
    dist.barrier()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(iterations + 1)]
    launch(0)  # brings the ranks together
    events[0].record()
    for i in range(iterations):
        launch((i + 1) % SETS)
        events[i + 1].record()
    torch.cuda.synchronize()
    times = torch.tensor([events[i].elapsed_time(events[i + 1]) for i in range(iterations)], device="cuda")
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return statistics.median(times.tolist())


def main():
    parser = argparse.ArgumentParser()
    for name in ("rank", "world", "port", "device", "iterations"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("shapes", nargs="+")
    arguments = parser.parse_args()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(arguments.port))
    device = torch.device("cuda", arguments.device)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", rank=arguments.rank, world_size=arguments.world, device_id=device)
    group = dist.group.WORLD.group_name
    symm.enable_symm_mem_for_group(group)
    results = []
    for text in arguments.shapes:
        op, shape, dtype = text.split(":")
        m, n, k = map(int, shape.split("x"))
        try:
            results.append(measure(operation(op, m, n, k, TYPES[dtype], group), arguments.iterations))
        except (ValueError, RuntimeError, AttributeError) as why:
            if arguments.rank == 0:
                print(f"torch_fused: {text}: {why}", file=sys.stderr)
            results.append(None)
        torch.cuda.empty_cache()
    if arguments.rank == 0:
        print(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
