#!/usr/bin/env python3
"""Measures mixture of experts of ranks that share one GPU at the same time, under MPS, beside a floor of the same run, and records the
rows.

Usage: tests/perf/record_moe_shares.py [--only NAME]... [--iterations I] [--quick] [--seconds S] [--share-gpu R] [--sms S]
                                       [--nic-gbytes G] [--out DIR] [--device cpu]
Starts an MPS server, a daemon for ranks of one node and two that play two nodes, and R ranks, which are Python processes; MKERNEL_BIN and
MKERNEL_LIB are the folders of programs and libraries (default build/bin, and lib beside it). Needs PyTorch with CUDA. A row is added to
OUT/<machine>x1-share<R>-<date>-moe.json as soon as it is measured, in place of one with the same name and routing.
--only NAME: cases whose name holds it; --list prints them. --quick: three iterations, random routing alone. --device cpu tries the
script in host memory with little shapes, and records nothing.

Tokens and the rate of the emulated wire are scaled with the share: each rank has an R-th. The floor is the operation of a rank alone on
as many multiprocessors, with as many rows of each expert as the routing gave the rank, on all ranks at once. An iteration's time is
that of the slowest rank, between events behind a launch that brings the ranks together, all with new inputs and routing; what both
computed is verified against fp32 outside of the timed span. Exit status: 1 if a result was wrong or a case could not be measured.
"""
import argparse
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import record_gpu
import record_moe

HERE = pathlib.Path(__file__).resolve().parent
TOKENS = {"layer": 8192, "dispatch": 32768}  # of a GPU that is not shared
ROUTINGS = ("random", "zipf 1.2")
ENDING = 30  # seconds after which ranks that have not ended in time are ended


def cases_of(arguments):
    cases = []
    for nodes in (1, 2):
        for kind, tokens in TOKENS.items():
            name = f"{kind}-{tokens // arguments.share_gpu}" + (f"-{nodes}nodes" if nodes > 1 else "")
            if not arguments.only or any(part in name for part in arguments.only):
                cases += [{"kind": kind, "name": name, "nodes": nodes, "tokens": tokens // arguments.share_gpu, "routing": routing}
                          for routing in (ROUTINGS[:1] if arguments.quick else ROUTINGS)]
    return cases


class Ranks:
    """Processes whose output goes to files, but that of rank 0, which prints the rows."""

    def __init__(self, folder, settings, sockets, environment):
        self.logs = [folder / f"rank{rank}.log" for rank in range(settings["ranks"])]
        self.processes = []
        for rank, path in enumerate(self.logs):
            mine = {**settings, "rank": rank, "sockets": {nodes: of[rank] for nodes, of in sockets.items()}}
            command = [sys.executable, "-B", str(HERE / "moe_record/share_rank.py"), json.dumps(mine)]
            with path.open("wb") as log:
                self.processes.append(subprocess.Popen(command, env=environment, stdout=None if rank == 0 else log, stderr=log))

    def wait(self, until):
        """Exit status of the run."""
        while any(process.poll() is None for process in self.processes):
            if any(process.returncode for process in self.processes):
                until = min(until, time.monotonic() + ENDING)  # the others fail, too, and say why
            if time.monotonic() > until:
                self._show_where()
                break
            time.sleep(0.1)
        states = [process.poll() for process in self.processes]
        if any(states) or None in states:
            for rank, (state, log) in enumerate(zip(states, self.logs)):
                said = log.read_text(errors="replace")[-4000:]
                if said or state is None:
                    print(f"---- rank {rank}, {'which had not ended' if state is None else f'exit status {state}'}:\n{said}", flush=True)
            return 1
        return 0

    def _show_where(self):
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGUSR1)
        time.sleep(1)

    def end(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


def record(arguments, cases, stack):
    stop = time.monotonic() + arguments.seconds
    from client_test import PACKAGE  # which also says where the library is

    cuda = arguments.device == "cuda"
    machine, path = {"gpu": None}, None
    if cuda:
        import mps

        machine = record_moe.gpu()
        path = arguments.out / f"{record_gpu.prefix(arguments)}moe.json"
        server = stack.enter_context(mps.Mps())
        os.environ.update(server.environment)  # of daemons and ranks
    print(", ".join(f"{key} {value}" for key, value in machine.items()), flush=True)
    ranks = arguments.share_gpu
    sockets = {}
    for nodes in sorted({1, *(case["nodes"] for case in cases)}):
        daemons = record_gpu.start_nodes(stack, nodes, arguments, gpu_memory=cuda)
        sockets[nodes] = [str(daemons[rank * nodes // ranks].socket) for rank in range(ranks)]
    settings = {"cases": cases, "ranks": ranks, "sms": arguments.sms, "device": arguments.device, "iterations": arguments.iterations,
                "nic_gbytes": arguments.nic_gbytes, "machine": machine, "path": None if path is None else str(path),
                "stop_at": time.time() + stop - time.monotonic()}
    # A rank has loaded what it launches before it waits for another one; all of PyTorch would take long to load.
    environment = {**os.environ, "CUDA_MODULE_LOADING": "LAZY"}
    if PACKAGE:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (PACKAGE, os.environ.get("PYTHONPATH"))))
    folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mkernel-")))
    running = Ranks(folder, settings, sockets, environment)
    stack.callback(running.end)
    status = running.wait(stop + ENDING)
    print(f"recorded in {path}" if path is not None else "nothing is recorded of a run in host memory", flush=True)
    return status


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", metavar="NAME", help="cases whose name holds it; several times: any of them")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--iterations", type=int, help="default 8")
    parser.add_argument("--quick", action="store_true", help="three iterations, random routing alone")
    parser.add_argument("--seconds", type=float, default=80, help="what is not measured by then is cut short or left out")
    parser.add_argument("--share-gpu", type=int, default=4, metavar="R", help="ranks; even")
    parser.add_argument("--sms", type=int, default=0, help="multiprocessors of a rank; 0: an R-th of all but four, which the daemons' copies need")
    parser.add_argument("--nic-gbytes", type=float, default=50.0, help="of a GPU that is not shared")
    parser.add_argument("--latency-us", type=int, default=5)
    parser.add_argument("--spin-us", type=int, default=1000000, help="proxy.spin_us of the daemons of several nodes")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", default=HERE / "results", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.share_gpu < 2 or arguments.share_gpu % 2:
        parser.error(f"--share-gpu {arguments.share_gpu}, must be even: two nodes have half of the ranks each")
    arguments.world = arguments.share_gpu
    arguments.nic_gbytes /= arguments.share_gpu
    if arguments.iterations is None:
        arguments.iterations = 3 if arguments.quick else 8
    cases = cases_of(arguments)
    if arguments.list:
        print(*dict.fromkeys(case["name"] for case in cases), sep="\n")
        return
    if not cases:
        parser.error(f"no case's name holds {' or '.join(arguments.only)}; --list prints them")
    record_moe.find_library()
    # Ended by a signal, too, it ends what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    with contextlib.ExitStack() as stack:  # whatever happens, what was started is ended, the last first
        status = record(arguments, cases, stack)
    sys.exit(status)


if __name__ == "__main__":
    main()
