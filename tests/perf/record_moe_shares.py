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
--only NAME: cases whose name holds it; --two-nodes: those of two emulated nodes; --list prints them. --quick: three iterations instead of
eight, random routing alone. --seconds: 80 unless it is given, with --world 480. --device cpu tries the script in host memory with little shapes, with gloo in place of NCCL, and records nothing.

With a GPU each, a case that ends the ranks or takes longer than --row-seconds is left out, and new ranks measure what follows it. Ranks that
share a GPU have an R-th of the tokens and of the rate of the emulated wire. The floor is the operation (with a GPU each: of
dispatch+GEMM the grouped GEMM) of a rank alone on as many multiprocessors, with as many rows of each expert as the routing gave the
rank, on all ranks at once. An iteration's time is that of the slowest rank, between events behind a launch that brings the ranks
together, all with new inputs and routing; what all computed is verified against fp32 outside of the timed span. Exit status: 1 if a
result was wrong, PyTorch's too, or a case could not be measured.
"""
import argparse
import dataclasses
import pathlib

import record_ranks

HERE = pathlib.Path(__file__).resolve().parent


def cases_of(arguments):
    import rank_cases  # beside the ranks' program; record_moe, which record_ranks imports, has said where

    cases = rank_cases.of_gpus(arguments.world) if arguments.world else rank_cases.of_shares(arguments.share_gpu)
    return [case for case in cases
            if (not arguments.only or any(part in case.name for part in arguments.only))
            and (case.nodes == 2 or not arguments.two_nodes)
            and (case.routing == rank_cases.RANDOM or not arguments.quick)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--two-nodes", action="store_true", help="cases of two emulated nodes alone")
    parser.add_argument("--quick", action="store_true", help="three iterations, random routing alone")
    parser.add_argument("--no-chain", action="store_true", help="without PyTorch's chain")
    arguments = record_ranks.parse(parser, ("share_gpu", 4))
    if arguments.iterations is None:
        arguments.iterations = 3 if arguments.quick else 8
    if arguments.seconds is None:
        arguments.seconds = 480 if arguments.world else 80
    cases = [dataclasses.asdict(case) for case in cases_of(arguments)]
    if arguments.share_gpu and not arguments.list:
        print("PyTorch's chain is left out: NCCL needs a GPU for each rank", flush=True)
    backend = None if arguments.share_gpu or arguments.no_chain else "nccl" if arguments.device == "cuda" else "gloo"
    record_ranks.run(parser, arguments, HERE / "moe_record/share_rank.py", "moe", cases, backend)


if __name__ == "__main__":
    main()
