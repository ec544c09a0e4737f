"""Rows of ring attention: what all ranks measured, what it is compared with, and the bars."""
import statistics

# Of the rate of attention of a rank alone on the same share of a GPU.
SHARE_BAR, SHARE_SHORT_BAR, SHARE_CAUSAL_BAR, SHARE_BACKWARD_BAR = 0.95, 0.90, 0.93, 0.90
SHORT = 12288          # positions, up to which SHARE_SHORT_BAR is asked for
NODES_BAR = 1 / 1.05   # of the rate on one node
RINGS = ("mkernel", "one_node", "nccl_ring")  # the others compute as much work of a rank alone


def row_of(case, shape, turns, settings, more):
    """`turns`: by iteration and name, (milliseconds of the slowest rank, the largest error over its tolerance). TFLOP/s are those of a
    rank, and ratios are medians of those of the iterations. `more`: fields of the row that this rank knows."""
    world, nodes, share = settings["ranks"], case["nodes"], settings["share"] or None
    row = {"op": shape.op, "name": case["name"], "routing": None, "batch": shape.batch, "heads": shape.heads,
           "kv_heads": shape.kv_heads, "head_dim": shape.head_dim, "sequence": shape.sequence, "causal": shape.causal, "dtype": "bf16",
           "world": world, "nodes": nodes, "share": share, "iterations": len(turns), "verified": True, **more}
    rates = {}  # by name and iteration
    for name in turns[0]:
        flops = shape.flops() / world if name in RINGS else shape.alone(world).flops()
        taken, prefix = [turn[name][0] for turn in turns], "" if name == "mkernel" else f"{name}_"
        rates[name] = [flops / ms / 1e9 for ms in taken]
        row |= {f"{prefix}ms": statistics.median(taken), f"{prefix}min_ms": min(taken), f"{prefix}max_ms": max(taken),
                f"{prefix}tflops": statistics.median(rates[name]), f"{prefix}worst_of_tolerance": max(turn[name][1] for turn in turns)}
    row |= {key: statistics.median(ours / theirs for ours, theirs in zip(rates["mkernel"], rates[name]))
            for key, name in compared(rates).items()}
    if nodes > 1:
        # Bytes of a rank: keys and values, and at most as many of their gradients.
        sent = 4 * shape.batch * (shape.sequence // world) * shape.kv_heads * shape.head_dim * (nodes - 1)
        sent *= 2 if shape.op == "ring_attention_backward" else 1
        row |= {"nic_gbytes": settings["nic_gbytes"], "wire_ms": sent / settings["nic_gbytes"] / 1e6}
    bars = bars_of(shape, nodes, share)
    return row | {"bars": bars, "missed": [key for key, least in bars.items() if not row.get(key, 0) >= least]}


def compared(rates):
    """Names of contenders by the key of the ratio."""
    names = {"of_floor": "floor", "of_one_node": "one_node", "over_nccl_ring": "nccl_ring"}
    cudnn = [name for name in rates if name.startswith("cudnn_")]
    if cudnn:
        names["of_cudnn"] = max(cudnn, key=lambda name: statistics.median(rates[name]))
    return {key: name for key, name in names.items() if name in rates}


def bars_of(shape, nodes, share):
    """The least that is asked for, by the key of the row."""
    if nodes > 1:
        return {"of_one_node": NODES_BAR}
    if share and shape.op == "ring_attention_backward":
        return {"of_floor": SHARE_BACKWARD_BAR}
    if share:
        return {"of_floor": SHARE_CAUSAL_BAR if shape.causal else SHARE_SHORT_BAR if shape.sequence <= SHORT else SHARE_BAR}
    return {key: least for key, least in (("of_cudnn", shape.of_cudnn), ("over_nccl_ring", shape.over_nccl_ring), ("tflops", shape.tflops))
            if least is not None}


def line(row):
    """A row as a line of the table."""
    times = ", ".join(f"{label} {row[prefix + 'ms']:.4f} ({row[prefix + 'min_ms']:.4f} to {row[prefix + 'max_ms']:.4f}, "
                      f"{row[prefix + 'tflops']:.0f} TFLOP/s)"
                      for label, prefix in (("ours", ""), ("one node", "one_node_"), ("floor", "floor_"), ("cuDNN", "cudnn_rows_"),
                                            ("heads outside", "cudnn_heads_"), ("expanded", "cudnn_expanded_"), ("NCCL", "nccl_ring_"))
                      if prefix + "ms" in row)
    ratios = ", ".join(f"{key} {row[key]:.3f}" for key in ("of_floor", "of_cudnn", "over_nccl_ring", "of_one_node") if key in row)
    asked = ", ".join(f"{key} {least:.4g}" for key, least in row["bars"].items()) or "nothing"
    missed = f", MISSED: {', '.join(row['missed'])}" if row["missed"] else ""
    left_out = "".join(f"\n    without {name}: {why}" for name, why in row["left_out"].items())
    return f"{row['name']:37} | {ratios} | asked: {asked}{missed} | ms: {times} | {row['iterations']} iterations{left_out}"
