#!/usr/bin/env python3
"""Measures mixture of experts of several ranks, which have a GPU each or share one under MPS, beside a floor of the same run and, where
they have NCCL, beside PyTorch's chain of all-to-all and torch._grouped_mm, and records the rows.

Usage: tests/perf/record_moe_shares.py [--world W | --share-gpu R] [--only NAME]... [--two-nodes] [--iterations I] [--quick]
               [--seconds S] [--row-seconds S] [--sms S] [--nic-gbytes G] [--no-chain] [--out DIR] [--device cpu]
Starts a daemon for ranks of one node and two that play two nodes, and the ranks, which are Python processes; MKERNEL_BIN and
MKERNEL_LIB are the folders of programs and libraries (default build/bin, and lib beside it). Needs PyTorch with CUDA. A row is added as
soon as it is measured, in place of one with the same name and routing, to OUT/<machine>x<W>-<date>-moe.json with a GPU for each of W
ranks, and to OUT/<machine>x1-share<R>-<date>-moe.json with R ranks that share a GPU (the default, R = 4), under an MPS server of this
program's own.
--only NAME: cases whose name holds it; --two-nodes: those of two emulated nodes; --list prints them. --quick: three iterations, random
routing alone. --device cpu tries the script in host memory with little shapes, with gloo in place of NCCL, and records nothing.

With a GPU each, a case that ends the ranks or takes longer than --row-seconds is left out, and new ranks measure what follows it. Ranks that
share a GPU have an R-th of the tokens and of the rate of the emulated wire. The floor is the operation (with a GPU each: of
dispatch+GEMM the grouped GEMM) of a rank alone on as many multiprocessors, with as many rows of each expert as the routing gave the
rank, on all ranks at once. An iteration's time is that of the slowest rank, between events behind a launch that brings the ranks
together, all with new inputs and routing; what all computed is verified against fp32 outside of the timed span. Exit status: 1 if a
result was wrong, PyTorch's too, or a case could not be measured.
"""
import argparse
import contextlib
import dataclasses
import os
import pathlib
import signal
import sys
import time

import record_gpu
import record_moe

HERE = pathlib.Path(__file__).resolve().parent


def cases_of(arguments):
    import rank_cases  # beside the ranks' program; record_moe has said where

    cases = rank_cases.of_gpus(arguments.world) if arguments.world else rank_cases.of_shares(arguments.share_gpu)
    return [case for case in cases
            if (not arguments.only or any(part in case.name for part in arguments.only))
            and (case.nodes == 2 or not arguments.two_nodes)
            and (case.routing == rank_cases.RANDOM or not arguments.quick)]


def record(arguments, cases, stack):
    stop = time.monotonic() + arguments.seconds
    import processes

    cuda, ranks = arguments.device == "cuda", arguments.world or arguments.share_gpu
    machine, path = {"gpu": None}, None
    if cuda and arguments.world > processes.gpus():
        raise SystemExit(f"--world {arguments.world}: this machine has {processes.gpus()} GPUs")
    if cuda:
        machine = record_moe.gpu()
        path = arguments.out / f"{record_gpu.prefix(arguments)}moe.json"
    if cuda and arguments.share_gpu:
        import mps

        server = stack.enter_context(mps.Mps())
        os.environ.update(server.environment)  # of daemons and ranks
    print(", ".join(f"{key} {value}" for key, value in machine.items()), flush=True)
    if arguments.share_gpu:
        print("PyTorch's chain is left out: NCCL needs a GPU for each rank", flush=True)
    sockets = processes.sockets(stack, {1, *(case.nodes for case in cases)}, ranks, arguments)
    backend = None if arguments.share_gpu or arguments.no_chain else "nccl" if cuda else "gloo"
    settings = {"ranks": ranks, "share": arguments.share_gpu, "sms": arguments.sms, "device": arguments.device,
                "iterations": arguments.iterations, "row_seconds": arguments.row_seconds, "nic_gbytes": arguments.nic_gbytes, "machine": machine,
                "backend": backend, "path": None if path is None else str(path), "stop_at": time.time() + stop - time.monotonic()}
    status = processes.run(HERE / "moe_record/share_rank.py", [dataclasses.asdict(case) for case in cases], settings, sockets, stop)
    print(f"recorded in {path}" if path is not None else "nothing is recorded of a run in host memory", flush=True)
    return status


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--world", type=int, default=0, metavar="W", help="ranks with a GPU each; even")
    parser.add_argument("--share-gpu", type=int, default=0, metavar="R", help="ranks that share a GPU; even; default 4")
    parser.add_argument("--only", action="append", metavar="NAME", help="cases whose name holds it; several times: any of them")
    parser.add_argument("--two-nodes", action="store_true", help="cases of two emulated nodes alone")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--iterations", type=int, help="default 8")
    parser.add_argument("--quick", action="store_true", help="three iterations, random routing alone")
    parser.add_argument("--seconds", type=float,
                        help="what is not measured by then is cut short or left out; default 80, with --world 480")
    parser.add_argument("--row-seconds", type=float, default=75, help="of one case, after which its ranks are ended")
    parser.add_argument("--sms", type=int, default=0,
                        help="multiprocessors of a rank; 0: all, or an R-th of all but four, which the daemons' copies need")
    parser.add_argument("--nic-gbytes", type=float, default=50.0, help="of a GPU that is not shared")
    parser.add_argument("--latency-us", type=int, default=5)
    parser.add_argument("--spin-us", type=int, default=1000000, help="proxy.spin_us of the daemons of several nodes")
    parser.add_argument("--no-chain", action="store_true", help="without PyTorch's chain")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", default=HERE / "results", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.world and arguments.share_gpu:
        parser.error(f"--world {arguments.world} and --share-gpu {arguments.share_gpu}: ranks either have a GPU each or share one")
    if not arguments.world and not arguments.share_gpu:
        arguments.share_gpu = 4
    for option, ranks in (("--world", arguments.world), ("--share-gpu", arguments.share_gpu)):
        if ranks < 0 or ranks % 2:
            parser.error(f"{option} {ranks}, must be even: two nodes have half of the ranks each")
    if arguments.share_gpu:
        arguments.nic_gbytes /= arguments.share_gpu
    if arguments.iterations is None:
        arguments.iterations = 3 if arguments.quick else 8
    if arguments.seconds is None:
        arguments.seconds = 480 if arguments.world else 80
    cases = cases_of(arguments)
    if arguments.list:
        print(*dict.fromkeys(case.name for case in cases), sep="\n")
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
