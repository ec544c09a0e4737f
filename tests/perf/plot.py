#!/usr/bin/env python3
"""Draws recorded rows of the cuda executor: time over that of the product alone, by shape, ours and what it was compared with.

Usage: tests/perf/plot.py RESULTS.json...      writes RESULTS.png beside each. Needs matplotlib.
"""
import json
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

SIDES = (("ms", "mkernel", "#1b6ca8"), ("torch_fused_ms", "torch symmetric memory", "#c98a1b"),
         ("cublas_nccl_ms", "cuBLAS + NCCL", "#8a8a8a"))


def draw(path):
    rows = [row for row in json.loads(path.read_text()) if row["gemm_ms"]]
    if not rows:
        raise SystemExit(f"{path}: no row with a product alone to compare with")
    figure, axes = pyplot.subplots(figsize=(1.5 + 1.1 * len(rows), 4.2), layout="constrained")
    width = 0.8 / len(SIDES)
    for i, (key, label, colour) in enumerate(SIDES):
        at = [(x + (i - 1) * width, row[key] / row["gemm_ms"]) for x, row in enumerate(rows) if row[key]]
        if not at:
            continue
        bars = axes.bar([x for x, _ in at], [y for _, y in at], width, label=label, color=colour)
        axes.bar_label(bars, fmt="%.2f", fontsize=7, padding=1)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_yscale("log")
    axes.set_ylabel("time / time of the product alone (cuBLAS)")
    axes.set_xticks(range(len(rows)), [f"{row['m']}x{row['n']}\nx{row['k']}" for row in rows], fontsize=7)
    first = rows[0]
    axes.set_title(f"{first['op']}, {first['dtype']}, {first['world']} GPUs on {first['nodes']} node(s)", fontsize=10)
    axes.legend(fontsize=8)
    figure.savefig(path.with_suffix(".png"), dpi=110)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    for name in sys.argv[1:]:
        draw(pathlib.Path(name))
