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
import pathlib
import sys

import record_ranks

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE / "attention_record"))


def cases_of(only):
    import ring_shapes

    cases = [{"name": shape.name + ending, "shape": shape.name, "nodes": nodes}
             for shapes, nodes, ending in ((ring_shapes.SHAPES, 1, ""), (ring_shapes.SEVERAL_NODES, 2, "-2nodes")) for shape in shapes]
    return [case for case in cases if not only or any(part in case["name"] for part in only)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.set_defaults(iterations=8, seconds=340)
    arguments = record_ranks.parse(parser, ("world", 4))
    backend = "gloo" if arguments.device != "cuda" else None if arguments.share_gpu else "nccl"
    record_ranks.run(parser, arguments, HERE / "attention_record/ring_rank.py", "ring_attention", cases_of(arguments.only), backend)


if __name__ == "__main__":
    main()
