#!/usr/bin/env python3
"""Draws recorded rows of the cuda executor: time over that of the product alone, ours and what it was compared with.

Usage: tests/perf/plot.py [--square] [--out FILE.svg] RESULTS.json...
One panel per file, one group of bars per shape; --square keeps the shapes whose full product is square. Needs matplotlib.
"""
import argparse
import json
import pathlib

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

SIDES = (("ms", "mkernel", "#1b6ca8"), ("torch_fused_ms", "torch symmetric memory (eager)", "#c98a1b"),
         ("cublas_nccl_ms", "cuBLAS + NCCL", "#8a8a8a"))
TITLES = {"ag_gemm": "AllGather+GEMM", "gemm_rs": "GEMM+ReduceScatter", "gemm_ar": "GEMM+AllReduce"}


def square(row):
    """The product of all ranks together is N x N x N: AG+GEMM shards its columns, the other two their depth."""
    whole = {"n": row["n"] * row["world"], "k": row["k"]} if row["op"] == "ag_gemm" else {"n": row["n"], "k": row["k"] * row["world"]}
    return row["m"] == whole["n"] == whole["k"]


def panel(axes, rows, sides):
    width = 0.8 / len(sides)
    for i, (key, label, colour) in enumerate(sides):
        at = [(x + (i - (len(sides) - 1) / 2) * width, row[key] / row["gemm_ms"]) for x, row in enumerate(rows) if row[key]]
        bars = axes.bar([x for x, _ in at], [y for _, y in at], width, label=label, color=colour)
        axes.bar_label(bars, [f"{y:.2f}" if y < 10 else f"{y:.0f}" for _, y in at], fontsize=7, padding=1)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
    axes.set_xticks(range(len(rows)), [str(row["m"]) if square(row) else f"{row['m']}x{row['n']}\nx{row['k']}" for row in rows], fontsize=8)
    first = rows[0]
    nodes = "" if first["nodes"] == 1 else f", {first['nodes']} nodes"
    axes.set_title(f"{TITLES[first['op']]}, {first['world']} GPUs{nodes}, {first['dtype']}", fontsize=10)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="+", type=pathlib.Path)
    parser.add_argument("--square", action="store_true")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("plot.svg"))
    options = parser.parse_args()
    panels = []
    for path in options.results:
        rows = [row for row in json.loads(path.read_text()) if row["gemm_ms"] and (square(row) or not options.square)]
        if not rows:
            raise SystemExit(f"{path}: no row with a product alone to compare with")
        shapes = {(row["m"], row["n"], row["k"]): row for row in reversed(rows)}  # the first row of each shape
        panels.append([shapes[shape] for shape in sorted(shapes)])
    matplotlib.rcParams.update({"svg.hashsalt": "mkernel", "svg.fonttype": "none"})  # the same file from the same rows
    sides = [side for side in SIDES if any(row[side[0]] for rows in panels for row in rows)]
    figure, all_axes = pyplot.subplots(1, len(panels), sharey=True, squeeze=False, layout="constrained",
                                       figsize=(sum(1.2 + 0.75 * len(rows) for rows in panels), 3.6))
    for axes, rows in zip(all_axes[0], panels):
        panel(axes, rows, sides)
    all_axes[0][0].set_ylabel("time / time of the product alone")
    figure.legend(*all_axes[0][0].get_legend_handles_labels(), fontsize=8, loc="outside lower center", ncols=len(sides))
    figure.savefig(options.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
