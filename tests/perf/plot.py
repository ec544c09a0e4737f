#!/usr/bin/env python3
"""Draws recorded rows of the cuda executor: time over that of the product alone, ours and what it was compared with.

Usage: tests/perf/plot.py [--square] [--out FILE.svg] RESULTS.json...
One panel per file, one group of bars per shape; --square keeps the shapes whose full product is square. Needs matplotlib.
Of a file of record_moe_shares.py the bars are times over that of the floor, a rank alone with the same rows.
A file of record_torch.py is drawn as the crossover: time of mkernel.torch over that of the best other contender, by rows, with a panel
for each model and way (eager, CUDA graph) and a line for each layer. A ring marks a call of ours that fell back or was wrong.
A file of record_ring.py is drawn as TFLOP/s of a GPU, or of a rank's share of it, and nothing else with it.
"""
import argparse
import json
import pathlib

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

SIDES = (("ms", "mkernel", "#1b6ca8"), ("torch_fused_ms", "torch symmetric memory (eager)", "#c98a1b"),
         ("cublas_nccl_ms", "cuBLAS + NCCL", "#8a8a8a"), ("chain_ms", "NCCL all-to-all + torch._grouped_mm", "#8a8a8a"),
         ("half_chain_ms", "the same without the way back", "#c4c4c4"))
RING_SIDES = (("tflops", "mkernel", "#1b6ca8"), ("one_node_tflops", "mkernel, one node", "#7fb3d5"),
              ("floor_tflops", "attention of a rank alone", "#c9c9c9"), ("cudnn_tflops", "cuDNN on one GPU", "#c98a1b"),
              ("nccl_ring_tflops", "ring of NCCL and cuDNN", "#8a8a8a"))
TITLES = {"ag_gemm": "AllGather+GEMM", "gemm_rs": "GEMM+ReduceScatter", "gemm_ar": "GEMM+AllReduce"}


def square(row):
    """The product of all ranks together is N x N x N: AG+GEMM shards its columns, the other two their depth."""
    whole = {"n": row["n"] * row["world"], "k": row["k"]} if row["op"] == "ag_gemm" else {"n": row["n"], "k": row["k"] * row["world"]}
    return row["m"] == whole["n"] == whole["k"]


def base(row):
    """What the bars of a row are compared with."""
    return "floor_ms" if "floor_ms" in row else "gemm_ms"


def shown(row):
    if base(row) == "floor_ms":
        return "\n".join((*row["name"].split("-"), row["routing"]))
    return str(row["m"]) if square(row) else f"{row['m']}x{row['n']}\nx{row['k']}"


def panel(axes, rows, sides):
    width = 0.8 / len(sides)
    for i, (key, label, colour) in enumerate(sides):
        at = [(x + (i - (len(sides) - 1) / 2) * width, row[key] / row[base(row)]) for x, row in enumerate(rows) if row.get(key)]
        bars = axes.bar([x for x, _ in at], [y for _, y in at], width, label=label, color=colour)
        axes.bar_label(bars, [f"{y:.2f}" if y < 10 else f"{y:.0f}" for _, y in at], fontsize=7, padding=1)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
    axes.set_xticks(range(len(rows)), [shown(row) for row in rows], fontsize=8)
    first = rows[0]
    if base(first) == "floor_ms":
        title, nodes = "Mixture of experts", ""
    else:
        title, nodes = TITLES[first["op"]], "" if first["nodes"] == 1 else f", {first['nodes']} nodes"
    gpus = f"{first['world']} ranks of a GPU" if first.get("share") else f"{first['world']} GPUs"
    axes.set_title(f"{title}, {gpus}{nodes}, {first['dtype']}", fontsize=10)


def crossover(rows, options):
    models, ways = (list(dict.fromkeys(row[key] for row in rows)) for key in ("model", "how"))
    figure, all_axes = pyplot.subplots(len(ways), len(models), sharex=True, sharey=True, squeeze=False, layout="constrained",
                                       figsize=(4.2 * len(models), 3.2 * len(ways)))
    layers = sorted({(row["op"], row["layer"]) for row in rows})
    for way, line in zip(ways, all_axes):
        for model, axes in zip(models, line):
            for i, (op, layer) in enumerate(layers):
                of_layer = sorted((row for row in rows if (row["model"], row["how"], row["op"], row["layer"]) == (model, way, op, layer)),
                                  key=lambda row: row["m"])
                axes.plot([row["m"] for row in of_layer], [row["ratio"] for row in of_layer], f"C{i}.-", linewidth=1.2,
                          label=f"{layer} ({TITLES[op]})")
                lost = [row for row in of_layer if row["fell_back"] or not row["contenders"]["mkernel"]["verified"]]
                axes.plot([row["m"] for row in lost], [row["ratio"] for row in lost], f"C{i}o", fillstyle="none")
            axes.axhline(1, color="black", linewidth=0.8)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("")
            axes.set_yticks([0.7, 1, 1.4, 2, 2.8])
            axes.set_title(f"{model}, {way}", fontsize=10)
        line[0].set_ylabel("time / time of the best other")
    for axes in all_axes[-1]:
        axes.set_xlabel("rows M")
    figure.legend(*all_axes[0][0].get_legend_handles_labels(), fontsize=8, loc="outside lower center", ncols=3)
    figure.savefig(options.out, metadata={"Date": None})


def ring_attention(rows, options):
    """A bar for each contender of a row; the one of cuDNN that was the fastest."""
    for row in rows:
        row["cudnn_tflops"] = max((row[key] for key in row if key.startswith("cudnn_") and key.endswith("_tflops")), default=None)
    sides = [side for side in RING_SIDES if any(row.get(side[0]) for row in rows)]
    width = 0.8 / len(sides)
    figure, axes = pyplot.subplots(layout="constrained", figsize=(1.5 + 0.32 * len(sides) * len(rows), 4))
    for i, (key, label, colour) in enumerate(sides):
        at = [(x + (i - (len(sides) - 1) / 2) * width, row[key]) for x, row in enumerate(rows) if row.get(key)]
        bars = axes.bar([x for x, _ in at], [y for _, y in at], width, label=label, color=colour)
        axes.bar_label(bars, [f"{y:.0f}" for _, y in at], fontsize=7, padding=1)
    names = [row["name"].replace("-S", "\nS").replace("-2nodes", "\n2 nodes").replace("-backward", "\nbackward") for row in rows]
    axes.set_xticks(range(len(rows)), names, fontsize=8)
    axes.set_ylabel("TFLOP/s of a rank")
    first = rows[0]
    where = f"{first['world']} ranks that share a GPU" if first["share"] else f"{first['world']} GPUs"
    axes.set_title(f"Ring attention, {where}, {first['dtype']}", fontsize=10)
    figure.legend(*axes.get_legend_handles_labels(), fontsize=8, loc="outside lower center", ncols=len(sides))
    figure.savefig(options.out, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="+", type=pathlib.Path)
    parser.add_argument("--square", action="store_true")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("plot.svg"))
    options = parser.parse_args()
    matplotlib.rcParams.update({"svg.hashsalt": "mkernel", "svg.fonttype": "none"})  # the same file from the same rows
    files = [json.loads(path.read_text()) for path in options.results]
    if any(isinstance(file, dict) for file in files):  # of record_torch.py
        if len(files) != 1 or "operators" not in files[0]:
            raise SystemExit("a crossover is drawn of one file of record_torch.py, with the part operators")
        crossover([row for row in files[0]["operators"]["rows"] if row.get("ratio")], options)
        return
    if any("floor_tflops" in row for file in files for row in file):  # of record_ring.py
        if len(files) != 1:
            raise SystemExit("one file of record_ring.py is drawn at a time")
        ring_attention(files[0], options)
        return
    panels = []
    for path, file in zip(options.results, files):
        if all(base(row) == "floor_ms" for row in file):
            panels.append(file)
            continue
        rows = [row for row in file if row["gemm_ms"] and (square(row) or not options.square)]
        if not rows:
            raise SystemExit(f"{path}: no row with a product alone to compare with")
        shapes = {(row["m"], row["n"], row["k"]): row for row in reversed(rows)}  # the first row of each shape
        panels.append([shapes[shape] for shape in sorted(shapes)])
    sides = [side for side in SIDES if any(row.get(side[0]) for rows in panels for row in rows)]
    figure, all_axes = pyplot.subplots(1, len(panels), sharey=True, squeeze=False, layout="constrained",
                                       figsize=(sum(1.2 + 0.75 * len(rows) for rows in panels), 3.6))
    for axes, rows in zip(all_axes[0], panels):
        panel(axes, rows, sides)
    alone = "a rank alone" if base(panels[0][0]) == "floor_ms" else "the product alone"
    all_axes[0][0].set_ylabel(f"time / time of {alone}")
    figure.legend(*all_axes[0][0].get_legend_handles_labels(), fontsize=8, loc="outside lower center", ncols=len(sides))
    figure.savefig(options.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
