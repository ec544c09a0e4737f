#!/usr/bin/env python3
"""Measures the operations of the cuda executor on this machine's GPUs, beside what else one could use, and records the rows.

Usage: tests/perf/record_gpu.py [--bin DIR] [--out DIR] [--world W | --share-gpu R] [--nodes N] [--ops ag_gemm,gemm_rs,gemm_ar]
                                [--sizes 2048,...] [--odd] [--shapes MxNxK,...] [--iterations I] [--no-torch] [--spin-us US]
                                [--link-gbytes G]
Starts a daemon per (emulated) node and a rank per GPU, and adds to OUT/<machine>x<GPUs>-<date>-<op>.json. Square sizes S stand for
S x S/W x S of AG+GEMM and S x S x S/W of the other two; --odd adds shapes that no tile divides and those of a Llama-70B layer, --shapes
others, which are taken as they are.
Several nodes share this host: their daemons copy between GPUs at --nic-gbytes a second and GPU.

--share-gpu R instead runs R ranks on one GPU at the same time, each with its share of the multiprocessors, under an MPS server of
this program's own; the file is OUT/<machine>x1-share<R>-<date>-<op>.json. Everything is scaled with the share: m is an R-th of what
S stands for (n and k are as they were), and so is --nic-gbytes. A rank then has as many tiles per multiprocessor, and as much to
move in the time of its product, as with a GPU of its own. With --link-gbytes G kernels of one node wait as if links carried an R-th of
G x 10^9 bytes a second from each rank (354 of an H200), since memory is faster than they; the file is then ...-share<R>-links-....
"""
import argparse
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "integration"), str(HERE.parent / "gpu")]


def machine():
    """"h200" of "NVIDIA H200", "h100" of "NVIDIA H100 80GB HBM3": the GPU's name in the results' file names."""
    name = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader", "-i", "0"], capture_output=True, text=True,
                          check=True).stdout.strip()
    return name.removeprefix("NVIDIA ").split()[0].lower()


def prefix(arguments):
    """What the names of result files begin with: GPU, how many or which share of one, whether links are modelled, and the date."""
    links = "-links" if getattr(arguments, "link_gbytes", 0) else ""
    gpus = f"1-share{arguments.share_gpu}{links}" if arguments.share_gpu else str(arguments.world)
    return f"{machine()}x{gpus}-{time.strftime('%Y-%m-%d', time.gmtime())}-"


def shapes(op, sizes, world, odd, share):
    """M x N x K; of ranks that share a GPU, `share` of them, with m scaled to their part of it."""
    square = [(s, s // world, s) if op == "ag_gemm" else (s, s, s // world) for s in sizes]
    if odd:
        square += [(m, 1024, 4096) if op == "ag_gemm" else (m, 4096, 1024) for m in (1000, 1024, 4097, 4096, 12345, 12288)]
        square += [(4096, 3 * 128, 4096), (4096, 512, 4096)] if op == "ag_gemm" else [(4096, 4096, 3 * 128), (4096, 4096, 512)]
        square += [(8192, 28672 // world, 8192)] if op == "ag_gemm" else [(8192, 8192, 28672 // world)]
    return [f"{max(1, m // share)}x{n}x{k}" for m, n, k in square]


def command_of(mkbench, nodes, op, path, arguments):
    command = [mkbench, "op", op, "--executor", "cuda", "--iterations", str(arguments.iterations), "--json", str(path)]
    for shape in shapes(op, arguments.sizes, arguments.world, arguments.odd, arguments.share_gpu or 1) + arguments.shapes:
        command += ["--shape", shape]
    # NCCL would go over NVLink where an emulated wire is between our ranks, and takes one rank per GPU, as torch does.
    alone = len(nodes) > 1 or arguments.share_gpu
    for baseline in ("gemm", "product") if alone else ("gemm", "product", "nccl"):
        command += ["--baseline", baseline]
    if len(nodes) > 1:
        command += ["--nic-gbps", str(8 * arguments.nic_gbytes)]
    if not alone and not arguments.no_torch:
        command += ["--baseline", "torch", "--torch-driver", str(HERE.parent.parent / "tools/mkbench/torch_fused.py")]
    if arguments.share_gpu:
        command += ["--share", str(arguments.share_gpu), "--link-gbytes", str(arguments.link_gbytes)]
    return command


def measure(mkbench, nodes, op, path, arguments):
    command = command_of(mkbench, nodes, op, path, arguments)
    per_node = arguments.world // len(nodes)
    ranks = []
    try:
        for r in range(arguments.world):
            device = 0 if arguments.share_gpu else r
            # mkbench loads its kernels before a rank waits for another one; all of cuBLAS would take long to load.
            environment = {**os.environ, "CUDA_MODULE_LOADING": "LAZY", "RANK": str(r), "WORLD_SIZE": str(arguments.world)}
            ranks.append(subprocess.Popen([*command, "--daemon", str(nodes[r // per_node].socket), "--device", str(device)],
                                          env=environment))
        if any([rank.wait(arguments.patience) for rank in ranks]):
            raise SystemExit(f"{op} failed")
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
                rank.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default="build/bin", help="folder of mkerneld and mkbench")
    parser.add_argument("--out", default=HERE / "results", type=pathlib.Path)
    parser.add_argument("--world", type=int, default=4, help="ranks, each with a GPU")
    parser.add_argument("--share-gpu", type=int, default=0, metavar="R", help="R ranks on one GPU at the same time, under MPS")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--nic-gbytes", type=float, default=50.0)
    parser.add_argument("--link-gbytes", type=float, default=0, metavar="G", help="with --share-gpu: of a GPU's links, 0: not modelled")
    parser.add_argument("--latency-us", type=int, default=5)
    parser.add_argument("--spin-us", type=int, default=1000000, help="proxy.spin_us of the daemons of several nodes")
    parser.add_argument("--ops", default="ag_gemm,gemm_rs,gemm_ar")
    parser.add_argument("--sizes", default=[2048, 4096, 8192, 16384, 32768], type=lambda text: [int(s) for s in text.split(",") if s])
    parser.add_argument("--odd", action="store_true")
    parser.add_argument("--shapes", default=[], type=lambda text: text.split(","))
    parser.add_argument("--iterations", type=int, default=24)
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--patience", type=float, default=540, help="seconds for one operation")
    arguments = parser.parse_args()
    if arguments.link_gbytes and not arguments.share_gpu:
        parser.error("--link-gbytes is for ranks that share a GPU (--share-gpu)")
    if arguments.share_gpu:
        arguments.world = arguments.share_gpu
        arguments.nic_gbytes /= arguments.share_gpu
        arguments.link_gbytes /= arguments.share_gpu
    # Ended by a signal, too, it ends what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    os.environ["MKERNEL_BIN"] = str(pathlib.Path(arguments.bin).resolve())
    arguments.out.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:  # whatever happens, what was started is ended, the last first
        if arguments.share_gpu:
            import mps
            server = stack.enter_context(mps.Mps())
            os.environ.update(server.environment)  # of daemons and ranks
        record(arguments, stack)


def start_nodes(stack, count, arguments, gpu_memory=True):
    """A daemon each, which see each other; `stack` ends them. `arguments`: world, nic_gbytes, latency_us, spin_us."""
    import cluster

    folder = pathlib.Path(tempfile.mkdtemp(prefix="mkernel-"))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    ports = cluster.free_ports(count)
    # A rail for every GPU, as nodes of that size have, and a core for every proxy: it need not nap between two launches.
    emulated = {"transport": {"kind": "emulated", "gpu_memory": gpu_memory},
                "proxy": {"threads": arguments.world // count, "spin_us": arguments.spin_us},
                "transport.emulated": {"bandwidth_gbytes": arguments.nic_gbytes, "latency_us": arguments.latency_us}}
    nodes = [cluster.Daemon(folder, f"node{i}", ports[i], [f"127.0.0.1:{p}" for p in ports if p != ports[i]],
                            emulated if count > 1 else None) for i in range(count)]
    for node in nodes:
        stack.callback(node.stop)
        node.start()
    for node in nodes:
        cluster.wait_until(lambda n=node: sum(p["state"] == "alive" for p in n.show("peers")) == len(nodes) - 1,
                           "the nodes see each other")
    return nodes


def record(arguments, stack):
    import cluster
    begins = prefix(arguments)
    suffix = f"-{arguments.nodes}nodes" if arguments.nodes > 1 else ""

    nodes = start_nodes(stack, arguments.nodes, arguments)
    for op in arguments.ops.split(","):
        path = arguments.out / f"{begins}{op}{suffix}.json"
        measure(cluster.BIN / "mkbench", nodes, op, path, arguments)
        print(f"recorded in {path.name}", flush=True)


if __name__ == "__main__":
    main()
