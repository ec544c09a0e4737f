#!/usr/bin/env python3
"""Compares rows of ranks that share one GPU with rows of ranks that had a GPU each: what does the former predict of the latter?

Usage: tests/perf/calibrate.py RESULTS.json...
Takes both kinds of files (record_gpu.py, with and without --share-gpu) and prints a line in Markdown for every shape that both have:
a row of R ranks that share a GPU has an R-th of the rows m. `x product` is the time over that of cuBLAS alone in the same run.
"""
import json
import pathlib
import sys


def keyed(rows):
    """Rows by operation, nodes, world and the whole shape; the last one of each."""
    return {(row["op"], row["nodes"], row["world"], row["m"] * (row.get("share") or 1), row["n"], row["k"]): row for row in rows}


def main():
    rows = [row for path in sys.argv[1:] for row in json.loads(pathlib.Path(path).read_text())]
    shared, own = keyed(row for row in rows if row.get("share")), keyed(row for row in rows if not row.get("share"))
    print("| operation | nodes x ranks | m x n x k | ms, a GPU each | ms, shared | ratio | x product, a GPU each | x product, shared | ratio |")
    print("|---|---|---|---|---|---|---|---|---|")
    for key in sorted(shared.keys() & own.keys()):
        op, nodes, world, *shape = key
        one, other = own[key], shared[key]
        times = [one["ms"], other["ms"]]
        ratios = [row["ms"] / row["gemm_ms"] for row in (one, other)]
        cells = [op, f"{nodes} x {world // nodes}", " x ".join(map(str, shape)), *(f"{ms:.3f}" for ms in times), f"{times[1] / times[0]:.2f}",
                 *(f"{ratio:.2f}" for ratio in ratios), f"{ratios[1] / ratios[0]:.2f}"]
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
