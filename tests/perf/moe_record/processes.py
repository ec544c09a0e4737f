"""Rank processes of a script that records rows: started once for all rows, and again behind a case that has ended them."""
import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import record_gpu
import record_torch
from client_test import PACKAGE, free_ports  # which also says where the library is

ENDING = 30      # seconds after which ranks that have not ended in time are ended
FAILED = 5       # the same when one of them has failed: some of the others fail, too, and say why
BEGINNING = 120  # seconds until the first case begins


def gpus():
    """How many this machine has."""
    return len(subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=True).stdout.splitlines())


def sockets(stack, node_counts, ranks, arguments):
    """Starts daemons for so many ranks on each number of nodes of `node_counts`, and returns the ranks' sockets by number of nodes.
    `arguments`: device, and those of record_gpu.start_nodes() but world. `stack` ends the daemons."""
    arguments = argparse.Namespace(**{**vars(arguments), "world": ranks})
    found = {}
    for nodes in sorted(node_counts):
        daemons = record_gpu.start_nodes(stack, nodes, arguments, gpu_memory=arguments.device == "cuda")
        found[nodes] = [str(daemons[rank * nodes // ranks].socket) for rank in range(ranks)]
    return found


def run(program, cases, settings, of_ranks, stop):
    """Starts ranks, and new ones for the cases that are left when a case has ended them. Returns the exit status of the whole.

    `program` gets SETTINGS, which are JSON: `settings`, `cases`, `rank`, and of `of_ranks`, which are sockets(), the rank's own. Of the
    settings this needs ranks, share (ranks that share a GPU, or 0) and row_seconds. `stop`: of time.monotonic()."""
    # A rank has loaded what it launches before it waits for another one; all of PyTorch would take long to load.
    environment = {**os.environ, **record_torch.ENVIRONMENT, "CUDA_MODULE_LOADING": "LAZY", "GLOO_SOCKET_IFNAME": "lo"}
    if PACKAGE:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (PACKAGE, os.environ.get("PYTHONPATH"))))
    bad, attempt = False, 0
    with tempfile.TemporaryDirectory(prefix="mkernel-") as folder:
        while cases:
            now = {**settings, "cases": cases, "attempt": attempt, "port": free_ports(1)[0], "progress": f"{folder}/progress"}
            running = Ranks(program, pathlib.Path(folder), now, of_ranks, environment)
            try:
                status = running.wait(stop + ENDING, settings["row_seconds"])
            finally:
                running.end()
            bad = bad or status != 0
            reached = running.reached()
            if reached == len(cases):
                break
            if reached < 0:
                print("the ranks have failed before the first case", flush=True)
                break
            print(f"{_label(cases[reached])} | has ended the ranks", flush=True)
            cases, attempt = cases[reached + 1 :], attempt + 1
            # Ending a client of MPS can take its server and the daemons with it.
            if settings["share"] or time.monotonic() > stop:
                print("".join(f"{_label(case)} | left out\n" for case in cases), end="", flush=True)
                break
    return 1 if bad else 0


def _label(case):
    return f"{case['name']:21} {case.get('routing', ''):10}"


class Ranks:
    """Processes whose output goes to files, but that of rank 0, which prints the rows."""

    def __init__(self, program, folder, settings, of_ranks, environment):
        self.logs = [folder / f"rank{rank}.log" for rank in range(settings["ranks"])]
        self.progress = pathlib.Path(settings["progress"])
        self.progress.unlink(missing_ok=True)
        self.processes = []
        for rank, path in enumerate(self.logs):
            mine = {**settings, "rank": rank, "sockets": {nodes: of[rank] for nodes, of in of_ranks.items()}}
            command = [sys.executable, "-B", str(program), json.dumps(mine)]
            with path.open("wb") as log:
                self.processes.append(subprocess.Popen(command, env=environment, stdout=None if rank == 0 else log, stderr=log))

    def reached(self):
        """The number of the case that began last, that of all cases when they are over; -1: none has begun."""
        text = self.progress.read_text() if self.progress.exists() else ""
        return int(text) if text else -1

    def wait(self, until, row_seconds):
        """The largest exit status of the ranks; None: one had to be ended."""
        began, reached, states, failed = time.monotonic(), -1, [None], False
        row_until = began + BEGINNING
        while None in states:
            time.sleep(0.1)
            now, states = time.monotonic(), [process.poll() for process in self.processes]
            if self.reached() != reached:
                reached, row_until = self.reached(), now + row_seconds
            if any(states) and not failed:
                failed, until = True, min(until, now + FAILED)
            if None in states and now > min(until, row_until):
                print(f"ended {now - began:.0f} s after the start of the ranks", flush=True)
                self._show_where()
                break
        if any(states) or None in states:
            for rank, (state, log) in enumerate(zip(states, self.logs)):
                said = log.read_text(errors="replace")[-2000:]
                if said or state is None:
                    how = "which had not ended" if state is None else f"exit status {state}"
                    print(f"---- rank {rank}, {how}:\n{said}", flush=True)
        return None if None in states else max(map(abs, states))

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
