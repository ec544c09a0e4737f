#!/usr/bin/env python3
"""Measures mixture of experts and grouped GEMM of a rank alone on one GPU, beside PyTorch's around torch._grouped_mm, and records the
rows.

Usage: tests/perf/record_moe.py [--only NAME]... [--iterations I] [--quick] [--how graph|events] [--no-mkernel] [--out DIR] [--device cpu]
Starts a daemon; MKERNEL_BIN and MKERNEL_LIB are the folders of programs and libraries (default build/bin, and lib beside it). Needs PyTorch
with CUDA. A row is added to OUT/<machine>x1-<date>-moe.json as soon as it is measured, in place of one with the same name and routing.
--only NAME: shapes whose name holds it; --list prints them. --quick: three iterations, random routing alone. --no-mkernel measures
PyTorch alone, --device cpu tries the script in host memory with little shapes: neither records anything.

Every timed iteration has new inputs and new routing, reads them and the weights from memory, and is verified against fp32, outside of
the timed span. Exit status: 1 if a result was wrong or a shape could not be measured.
"""
import argparse
import contextlib
import gc
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "moe_record"), *(str(HERE.parent / folder) for folder in ("integration", "gpu", "python"))]


def gpu():
    """What the driver says about the GPU."""
    asked = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "-i", "0"], capture_output=True,
                           text=True, check=True).stdout.strip()
    return dict(zip(("gpu", "driver"), asked.split(", ")))


def add(path, row):
    """To the file, which is a list of rows."""
    rows = json.loads(path.read_text()) if path.exists() else []
    rows = [other for other in rows if (other["name"], other["routing"]) != (row["name"], row["routing"])]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([*rows, row], indent=1) + "\n")


def find_library():
    """Says in the environment where programs and library are, unless that is said already."""
    programs = pathlib.Path(os.environ.setdefault("MKERNEL_BIN", "build/bin"))
    if (programs.parent / "lib/libmkernel.so").exists():
        os.environ.setdefault("MKERNEL_LIB", str((programs.parent / "lib").resolve()))


def session_of(stack, device):
    """A daemon, and a session of this process."""
    import client_test  # also says where package and library are
    from cluster import Daemon

    import mkernel

    folder = pathlib.Path(tempfile.mkdtemp(prefix="mkernel-"))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    daemon = Daemon(folder, "node0", client_test.free_ports(1)[0], [])
    stack.callback(daemon.stop)
    daemon.start()
    return stack.enter_context(mkernel.connect(daemon.socket, name="record_moe", device=0 if device == "cuda" else -1))


def machine_of(arguments, what):
    """(what rows say of this machine, the file that they go to; None: in host memory nothing is recorded)."""
    import torch

    machine = {"gpu": None, "torch": torch.__version__, "cuda": torch.version.cuda}
    if arguments.device != "cuda":
        return machine, None
    import record_gpu

    torch.cuda.set_device(0)
    prefix = record_gpu.prefix(argparse.Namespace(share_gpu=0, world=1))
    return machine | gpu(), arguments.out / f"{prefix}{what}.json"


def record(arguments, stack):
    import torch

    import layer
    import measure

    torch.set_float32_matmul_precision("highest")  # of what is wanted
    torch.manual_seed(1)
    device = torch.device(arguments.device)
    if arguments.device != "cuda":
        torch.set_num_threads(1)
    machine, path = machine_of(arguments, "moe")
    machine["load_before"] = os.getloadavg()[0]
    print(", ".join(f"{key} {value}" for key, value in machine.items()), flush=True)
    session = None if arguments.no_mkernel else session_of(stack, arguments.device)
    clock = measure.Clock(arguments.how if arguments.device == "cuda" else "host")
    recorded = path is not None and session is not None
    problems = 0
    with torch.no_grad():
        for shape in shapes_of(arguments.only):
            shape = shape if arguments.device == "cuda" else layer.small(shape)
            weights = layer.Weights(shape, device)
            routings = list(layer.routings(shape).items())
            for routing, exponent in routings[:1] if arguments.quick else routings:
                case = layer.case_of(shape, exponent, weights, device)
                try:
                    # A launch that fails ends its group: the next case has another one.
                    with contextlib.nullcontext() if session is None else session.join(f"{shape.name} {routing}", 1, 0) as group:
                        row = measure.measure(case, routing, group, arguments.device, clock, arguments.iterations)
                except Exception as error:  # an error after which the GPU takes no more work ends the other shapes as well
                    print(f"{shape.name:15} {routing:11} | {type(error).__name__}: {error}", flush=True)
                    problems += 1
                    continue
                finally:
                    del case
                    gc.collect()
                    if arguments.device == "cuda":
                        torch.cuda.empty_cache()
                print(measure.line(row), flush=True)
                if recorded:
                    add(path, {"date": time.strftime("%Y-%m-%d", time.gmtime()), **machine, "executor": arguments.device, **row})
            del weights
    print(f"recorded in {path}" if recorded else "nothing is recorded of such a run", flush=True)
    return 1 if problems else 0


def shapes_of(only):
    import layer

    return [shape for shape in layer.SHAPES if not only or any(name in shape.name for name in only)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", metavar="NAME", help="shapes whose name holds it; several times: any of them")
    parser.add_argument("--list", action="store_true", help="print the names of the shapes")
    parser.add_argument("--iterations", type=int, help="default 12")
    parser.add_argument("--quick", action="store_true", help="three iterations, random routing alone")
    parser.add_argument("--how", choices=("graph", "events"), default="graph", help="replay a CUDA graph, or call anew")
    parser.add_argument("--no-mkernel", action="store_true", help="PyTorch alone")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", default=HERE / "results", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.iterations is None:
        arguments.iterations = 3 if arguments.quick else 12
    shapes = shapes_of(arguments.only)
    if arguments.list:
        print(*(shape.name for shape in shapes), sep="\n")
        return
    if not shapes:
        parser.error(f"no shape's name holds {' or '.join(arguments.only)}; --list prints them")
    find_library()
    # Ended by a signal, too, it ends what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    with contextlib.ExitStack() as stack:  # whatever happens, what was started is ended, the last first
        status = record(arguments, stack)
    sys.exit(status)


if __name__ == "__main__":
    main()
