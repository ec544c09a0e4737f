#!/usr/bin/env python3
"""Measures ring attention and its backward pass, of ranks with a GPU each or of ranks that share one under MPS, beside a rank alone,
cuDNN on one GPU, and a ring of NCCL and cuDNN in the same run, and records the rows.

Usage: tests/perf/record_ring.py [--world W | --share-gpu R] [--only NAME]... [--iterations I] [--seconds S] [--row-seconds S] [--sms S]
                                 [--nic-gbytes G] [--out DIR] [--device cpu] [--list]
Starts a daemon for ranks of one node and two that play two nodes, and the ranks, which are Python processes; MKERNEL_BIN and MKERNEL_LIB
are the folders of programs and libraries (default build/bin, and lib beside it). Needs PyTorch with CUDA. A row is added to
OUT/<machine>x<GPUs>-<date>-ring_attention.json as soon as it is measured, in place of one with the same name. --share-gpu R: R ranks on
one GPU; the rate of the emulated wire is scaled with the share, sequences are not. --only NAME: cases whose name holds it; --list
prints them. With a GPU each, a case that ends the ranks or takes longer than --row-seconds is left out, and new ranks measure what follows.
--device cpu tries the script in host memory with little shapes, gloo in place of NCCL, and records nothing.

All contenders have new inputs in every iteration and are verified against fp32, outside of the timed span: outputs of 64 queries of each
head, gradients of 64 positions of some heads, which each rank chooses for itself. An iteration's time is that of the slowest rank, between
events behind a launch that brings the ranks together. Exit status: 1 if a result was wrong, others' too, or a case could not be measured.
Bars that are missed do not change it.

Cases whose name holds "backward" are of the backward pass, without a ring of NCCL and cuDNN. Two launches of ours with the
same inputs must give the same bits.
"""
import argparse
import contextlib
import os
import pathlib
import signal
import sys
import time

import record_gpu
import record_moe

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE / "attention_record"))


def cases_of(only):
    import ring_shapes

    cases = [{"name": shape.name + ending, "shape": shape.name, "nodes": nodes}
             for shapes, nodes, ending in ((ring_shapes.SHAPES, 1, ""), (ring_shapes.SEVERAL_NODES, 2, "-2nodes")) for shape in shapes]
    return [case for case in cases if not only or any(part in case["name"] for part in only)]


def record(arguments, cases, stack):
    stop = time.monotonic() + arguments.seconds
    import processes

    cuda = arguments.device == "cuda"
    machine, path = {"gpu": None}, None
    if cuda and arguments.world > processes.gpus():
        raise SystemExit(f"--world {arguments.world}: this machine has {processes.gpus()} GPUs")
    if cuda:
        machine = record_moe.gpu()
        path = arguments.out / f"{record_gpu.prefix(arguments)}ring_attention.json"
        if arguments.share_gpu:
            import mps

            server = stack.enter_context(mps.Mps())
            os.environ.update(server.environment)  # of daemons and ranks
    print(", ".join(f"{key} {value}" for key, value in machine.items()), flush=True)
    ranks = arguments.world or arguments.share_gpu
    sockets = processes.sockets(stack, {1, *(case["nodes"] for case in cases)}, ranks, arguments)
    settings = {"ranks": ranks, "share": arguments.share_gpu, "sms": arguments.sms, "device": arguments.device,
                "iterations": arguments.iterations, "row_seconds": arguments.row_seconds, "nic_gbytes": arguments.nic_gbytes, "machine": machine,
                "backend": "gloo" if not cuda else None if arguments.share_gpu else "nccl",
                "path": None if path is None else str(path), "stop_at": time.time() + stop - time.monotonic()}
    status = processes.run(HERE / "attention_record/ring_rank.py", cases, settings, sockets, stop)
    print(f"recorded in {path}" if path is not None else "nothing is recorded of a run in host memory", flush=True)
    return status


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--world", type=int, default=0, metavar="W", help="ranks with a GPU each; even; default 4")
    parser.add_argument("--share-gpu", type=int, default=0, metavar="R", help="R ranks on one GPU at the same time, under MPS; even")
    parser.add_argument("--only", action="append", metavar="NAME", help="cases whose name holds it; several times: any of them")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=340, help="what is not measured by then is cut short or left out")
    parser.add_argument("--row-seconds", type=float, default=75, help="of one case, after which its ranks are ended")
    parser.add_argument("--sms", type=int, default=0, help="multiprocessors of a rank; 0: all, or where ranks share a GPU an R-th of all but "
                        "four, which the daemons' copies need")
    parser.add_argument("--nic-gbytes", type=float, default=50.0, help="of a GPU that is not shared")
    parser.add_argument("--latency-us", type=int, default=5)
    parser.add_argument("--spin-us", type=int, default=1000000, help="proxy.spin_us of the daemons of several nodes")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", default=HERE / "results", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.world and arguments.share_gpu:
        parser.error(f"--world {arguments.world} and --share-gpu {arguments.share_gpu}: ranks either have a GPU each or share one")
    if not arguments.world and not arguments.share_gpu:
        arguments.world = 4
    for option, ranks in (("--world", arguments.world), ("--share-gpu", arguments.share_gpu)):
        if ranks < 0 or ranks % 2:
            parser.error(f"{option} {ranks}, must be even: two nodes have half of the ranks each")
    if arguments.share_gpu:
        arguments.nic_gbytes /= arguments.share_gpu
    if arguments.iterations < 1:
        parser.error(f"--iterations {arguments.iterations}, must be at least 1")
    cases = cases_of(arguments.only)
    if arguments.list:
        print(*(case["name"] for case in cases), sep="\n")
        return
    if not cases:
        parser.error(f"no case's name holds {' or '.join(arguments.only)}; --list prints them")
    record_moe.find_library()
    # Ended by a signal, too, it ends what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    with contextlib.ExitStack() as stack:  # whatever happens, what was started is ended, the last first
        status = record(arguments, cases, stack)
    sys.exit(status)


if __name__ == "__main__":
    main()
