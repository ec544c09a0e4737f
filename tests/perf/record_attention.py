#!/usr/bin/env python3
"""Measures attention of a rank alone, and its backward pass, on one GPU beside PyTorch's scaled_dot_product_attention on cuDNN, and records the rows.

Usage: tests/perf/record_attention.py [--only NAME]... [--iterations I] [--sms N] [--how graph|events] [--no-mkernel] [--out DIR]
           [--device cpu] [--list]
Starts a daemon; MKERNEL_BIN and MKERNEL_LIB are the folders of programs and libraries (default build/bin, and lib beside it). Needs PyTorch
with CUDA. A row is added to OUT/<machine>x1-<date>-attention.json as soon as it is measured, in place of one with the same name.
--only NAME: shapes whose name holds it; --list prints them. --sms: multiprocessors of mkernel's; such rows are not recorded. --no-mkernel
measures PyTorch alone, --device cpu tries the script in host memory with little shapes: neither records anything.

cuDNN is forced, as PyTorch's default on Hopper is FlashAttention-2. It is measured twice: on tensors as mkernel takes them, [batch,
sequence, heads, head_dim] (cudnn_rows), and on copies with the heads outside (cudnn_heads); where heads share keys, also with a copy of the
keys and values for every head (cudnn_expanded). Rows are compared with the fastest.
Shapes whose name ends in "backward" are of the backward pass: cuDNN's is called as autograd would, and is not deterministic; mkernel's is.
Every timed iteration has new inputs, reads them from memory, and is verified against fp32 on 64 queries of each head, outside of the timed
span. Exit status: 1 if a result was wrong or a shape could not be measured.
"""
import argparse
import contextlib
import gc
import pathlib
import signal
import statistics
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "attention_record")]


def measure(case, group, executor, clock, iterations, options):
    """The row of one case. Errors: Wrong of the mixture of experts' measure.py, and those of mkernel and PyTorch."""
    import cases

    taken, worst = {}, {}
    running = module_of(case.shape.op).contenders(case, group, executor, **options)
    try:
        ready = {}
        for contender in list(running):
            try:
                for _ in range(2):  # loads kernels, and makes memory
                    cases.checked(contender, contender, clock)
            except RuntimeError as error:  # what cuDNN does not take
                if contender.name == "mkernel" or "No available kernel" not in str(error):
                    raise
                running.remove(contender)
                continue
            ready[contender.name] = clock.ready(contender)
        for iteration in range(iterations):
            case.renew()
            first = iteration % len(running)
            for contender in running[first:] + running[:first]:
                ms, off = cases.checked(contender, ready[contender.name], clock)
                taken.setdefault(contender.name, []).append(ms)
                worst[contender.name] = max(worst.get(contender.name, 0.0), off)
    finally:
        ready = None  # and with it the graphs
        for contender in running:
            contender.close()
        gc.collect()
    return row_of(case.shape, clock.how, taken, worst, iterations)


def row_of(shape, how, taken, worst, iterations):
    row = {"op": shape.op, "name": shape.name, "batch": shape.batch, "heads": shape.heads, "kv_heads": shape.kv_heads,
           "head_dim": shape.head_dim, "sequence": shape.sequence, "causal": shape.causal, "dtype": "bf16", "how": how, "world": 1,
           "iterations": iterations, "bar": shape.bar}
    for name, times in taken.items():
        prefix = "" if name == "mkernel" else f"{name}_"
        row |= {f"{prefix}ms": statistics.median(times), f"{prefix}min_ms": min(times), f"{prefix}max_ms": max(times),
                f"{prefix}tflops": shape.flops() / statistics.median(times) / 1e9, f"{prefix}worst_of_tolerance": worst[name]}
    if "ms" in row:
        row["verified"] = True  # measure() raises otherwise
        row["of_cudnn"] = min(statistics.median(times) for name, times in taken.items() if name != "mkernel") / row["ms"]
    return row


def line(row):
    """A row as a line of the table."""
    times = ", ".join(f"{name} {row[prefix + 'ms']:.4f} ({row[prefix + 'tflops']:.0f} TFLOP/s)"
                      for name, prefix in (("ours", ""), ("cuDNN", "cudnn_rows_"), ("heads outside", "cudnn_heads_"),
                                           ("expanded", "cudnn_expanded_"))
                      if prefix + "ms" in row)
    verdict = f"{row['of_cudnn']:.3f} of cuDNN, asked {row['bar']}" if "ms" in row else ""
    return f"{row['name']:30} | {verdict:32} | ms: {times}"


def record(arguments, stack):
    import torch

    import cases
    import record_moe
    from measure import Clock

    torch.set_float32_matmul_precision("highest")  # of what is wanted
    torch.manual_seed(1)
    device = torch.device(arguments.device)
    machine, path = record_moe.machine_of(arguments, "attention")
    if arguments.device == "cuda":
        machine["cudnn"] = torch.backends.cudnn.version()
    print(", ".join(f"{key} {value}" for key, value in machine.items()), flush=True)
    session = None if arguments.no_mkernel else record_moe.session_of(stack, arguments.device)
    clock = Clock(arguments.how if arguments.device == "cuda" else "host")
    recorded = path is not None and session is not None and arguments.sms == 0
    problems = 0
    with torch.no_grad():
        for shape in shapes_of(arguments.only):
            case = module_of(shape.op).Case(shape if arguments.device == "cuda" else cases.small(shape), device)
            try:
                # A launch that fails ends its group: the next case has another one.
                with contextlib.nullcontext() if session is None else session.join(shape.name, 1, 0) as group:
                    row = measure(case, group, arguments.device, clock, arguments.iterations,
                                  {"sms": arguments.sms} if arguments.sms else {})
            except Exception as error:  # an error after which the GPU takes no more work ends the other shapes as well
                print(f"{shape.name:30} | {type(error).__name__}: {error}", flush=True)
                problems += 1
                continue
            finally:
                del case
                gc.collect()
                if arguments.device == "cuda":
                    torch.cuda.empty_cache()
            print(line(row), flush=True)
            if recorded:
                day = time.strftime("%Y-%m-%d", time.gmtime())
                record_moe.add(path, {"date": day, **machine, "executor": arguments.device, "routing": None, **row})
    print(f"recorded in {path}" if recorded else "nothing is recorded of such a run", flush=True)
    return 1 if problems else 0


def module_of(op):
    """What has its shapes, operands and contenders."""
    import backward
    import cases

    return {"attention": cases, "attention_backward": backward}[op]


def shapes_of(only):
    shapes = [*module_of("attention").SHAPES, *module_of("attention_backward").SHAPES]
    return [shape for shape in shapes if not only or any(name in shape.name for name in only)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", metavar="NAME", help="shapes whose name holds it; several times: any of them")
    parser.add_argument("--list", action="store_true", help="print the names of the shapes")
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--sms", type=int, default=0, help="multiprocessors of mkernel's; 0: all")
    parser.add_argument("--how", choices=("graph", "events"), default="graph", help="replay a CUDA graph, or call anew")
    parser.add_argument("--no-mkernel", action="store_true", help="PyTorch alone")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", default=HERE / "results", type=pathlib.Path)
    arguments = parser.parse_args()
    import record_moe  # also says where modules of tests are

    shapes = shapes_of(arguments.only)
    if arguments.list:
        print(*(shape.name for shape in shapes), sep="\n")
        return
    if not shapes:
        parser.error(f"no shape's name holds {' or '.join(arguments.only)}; --list prints them")
    record_moe.find_library()
    # Ended by a signal, too, it ends what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    with contextlib.ExitStack() as stack:  # whatever happens, what was started is ended, the last first
        status = record(arguments, stack)
    sys.exit(status)


if __name__ == "__main__":
    main()
