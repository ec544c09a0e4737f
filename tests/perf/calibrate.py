#!/usr/bin/env python3
"""Compares rows of ranks that share one GPU with rows of ranks that had a GPU each: what does the former predict of the latter?

Usage: tests/perf/calibrate.py RESULTS.json...
Takes both kinds of files (record_gpu.py and record_moe_shares.py, with and without a shared GPU) and prints a line in Markdown for every
shape that both have: a row of R ranks that share a GPU has an R-th of the rows m, or of the tokens. `x product` is the time over that of
cuBLAS alone in the same run, and of mixtures of experts over that of the floor.
"""
import json
import pathlib
import sys


def keyed(rows):
    """Rows by operation, nodes, world and the whole shape; the last one of each."""
    return {(row["op"], row["nodes"], row["world"], *shape_of(row)): row for row in rows}


def shape_of(row):
    """Scaled to a GPU for each rank: (m, n, k), or (tokens of a rank, hidden, intermediate, n, experts, topk, routing)."""
    share = row.get("share") or 1
    if "m" in row:
        return row["m"] * share, row["n"], row["k"]
    return row["tokens"] * share, *(row[key] for key in ("hidden", "intermediate", "n", "experts", "topk", "routing"))


def main():
    rows = [row for path in sys.argv[1:] for row in json.loads(pathlib.Path(path).read_text())]
    shared, own = keyed(row for row in rows if row.get("share")), keyed(row for row in rows if not row.get("share"))
    print("| operation | nodes x ranks | shape | ms, a GPU each | ms, shared | ratio | x product, a GPU each | x product, shared "
          "| ratio |")
    print("|---|---|---|---|---|---|---|---|---|")
    for key in sorted(shared.keys() & own.keys()):
        op, nodes, world, *shape = key
        one, other = own[key], shared[key]
        times = [one["ms"], other["ms"]]
        ratios = [row["ms"] / (row["gemm_ms"] if "m" in row else row["floor_ms"]) for row in (one, other)]
        cells = [op, f"{nodes} x {world // nodes}", " x ".join(map(str, shape)), *(f"{ms:.3f}" for ms in times), f"{times[1] / times[0]:.2f}",
                 *(f"{ratio:.2f}" for ratio in ratios), f"{ratios[1] / ratios[0]:.2f}"]
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
