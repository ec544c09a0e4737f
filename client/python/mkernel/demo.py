"""`python -m mkernel.demo`: two nodes on this machine. Starts two daemons (TCP on loopback) and four ranks, runs the five
operations on seeded random input, verifies every element, shows what mkctl saw, and leaves nothing behind. The package's
programs do it all: neither numpy nor a compiler is needed. tools/demo is the same for a checkout that is built first."""

import argparse
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

from mkernel._commands import program

NODES, WORLD = 2, 4
PEERS_SECONDS, RUN_SECONDS, STOP_SECONDS = 30.0, 300.0, 20.0  # limits for a busy machine; an idle one needs a tenth
CONFIG = """[node]
name = "node{node}"
runtime_dir = "{folder}"
[peers]
listen = "127.0.0.1:{port}"
list = ["127.0.0.1:{peer}"]
[transport]
kind = "tcp"
[transport.tcp]
bind = "127.0.0.1"
"""


class DemoError(Exception):
    """What went wrong, for a person."""


class Demo:
    """The processes of one run, and the folder with all that they write."""

    def __init__(self, work: pathlib.Path) -> None:
        self._work = work
        self._daemons: "list[subprocess.Popen[bytes]]" = []
        self._ranks: "list[subprocess.Popen[str]]" = []
        self._begin = time.monotonic()

    def step(self, text: str) -> None:
        print(f"[{time.monotonic() - self._begin:3.0f} s] {text}", flush=True)

    def run(self) -> None:
        shared_before = _shared_memory()
        self.step("two daemons")
        self._start_daemons()
        self.step("four ranks, five operations")
        self._run_ranks()
        self.step("stop")
        self._stop_daemons()
        left = [str(path) for path in self._work.rglob("*") if path.is_socket()]
        left += sorted(_shared_memory() - shared_before)
        if left:
            raise DemoError(f"left behind: {', '.join(left)}")
        self.step("done: every element verified, nothing left behind")

    def _start_daemons(self) -> None:
        ports = _free_ports(NODES)
        for node in range(NODES):
            folder = self._folder(node)
            folder.mkdir()
            config = folder / "mkerneld.toml"
            config.write_text(CONFIG.format(node=node, folder=folder, port=ports[node], peer=ports[1 - node]))
            with (folder / "log").open("wb") as log:
                self._daemons.append(subprocess.Popen([str(program("mkerneld")), "--config", str(config)], stderr=log))
        end = time.monotonic() + PEERS_SECONDS
        for node in range(NODES):
            while '"alive"' not in self._mkctl(node, "peers", "-o", "json"):
                if self._daemons[node].poll() is not None:
                    raise DemoError(f"the daemon of node{node} ended:\n{self._log(node)}")
                if time.monotonic() > end:
                    raise DemoError(f"node{node} found no peer within {PEERS_SECONDS:.0f} s:\n{self._log(node)}")
                time.sleep(0.1)

    def _run_ranks(self) -> None:
        for rank in range(WORLD):
            daemon = str(self._folder(rank * NODES // WORLD) / "mkerneld.sock")
            command = [str(program("mkbench")), "op", "--preset", "demo", "--iterations", "1", "--group", "demo", "--daemon", daemon]
            environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(WORLD)}
            self._ranks.append(
                subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            )
        results: "dict[int, tuple[str, str]]" = {}
        readers = [threading.Thread(target=self._read, args=(rank, results), daemon=True) for rank in range(WORLD)]
        for reader in readers:
            reader.start()
        seen: "dict[str, str]" = {}  # the last look at each table while the ranks were there
        end = time.monotonic() + RUN_SECONDS
        while any(reader.is_alive() for reader in readers):
            if time.monotonic() > end:
                raise DemoError(f"the ranks did not end within {RUN_SECONDS:.0f} s")
            for table in ("sessions", "channels"):
                look = self._mkctl(0, table)
                if look.count("\n") > 2:
                    seen[table] = look
            readers[0].join(0.2)
        for rank, process in enumerate(self._ranks):
            if process.wait(STOP_SECONDS) != 0:
                raise DemoError(f"rank {rank} ended with {process.returncode}:\n{''.join(results[rank])}")
        print(results[0][0])
        for table in ("sessions", "channels"):
            print(f"mkctl {table} on node0, during the run:\n{seen.get(table, '(nothing seen)')}")
        if len(seen) < 2:
            raise DemoError("mkctl saw nothing of the ranks")

    def _read(self, rank: int, results: "dict[int, tuple[str, str]]") -> None:
        """What a rank prints; the progress of rank 0 is shown as it comes."""
        process, errors = self._ranks[rank], []
        for line in process.stderr or ():
            errors.append(line)
            if rank == 0:
                print(f"        {line}", end="", flush=True)
        results[rank] = (process.communicate()[0], "".join(errors))  # the output is one small table

    def _stop_daemons(self) -> None:
        for daemon in self._daemons:
            daemon.send_signal(signal.SIGTERM)
        for node, daemon in enumerate(self._daemons):
            if daemon.wait(STOP_SECONDS) != 0:
                raise DemoError(f"the daemon of node{node} ended with {daemon.returncode}:\n{self._log(node)}")

    def end_all(self) -> None:
        """Whatever still runs ends now."""
        processes: "list[subprocess.Popen[Any]]" = [*self._ranks, *self._daemons]
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait(STOP_SECONDS)

    def _folder(self, node: int) -> pathlib.Path:
        return self._work / f"node{node}"

    def _log(self, node: int) -> str:
        return (self._folder(node) / "log").read_text(errors="replace")[-4000:]

    def _mkctl(self, node: int, *arguments: str) -> str:
        command = [str(program("mkctl")), "--socket", str(self._folder(node) / "control.sock"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=STOP_SECONDS).stdout


def _shared_memory() -> "set[str]":
    """What mkernel has in /dev/shm."""
    return {path for path in map(str, pathlib.Path("/dev/shm").glob("*mkernel*"))}


def _free_ports(count: int) -> "list[int]":
    """Ports that nobody listens on at this moment; a daemon that still finds one taken says so."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def main() -> int:
    """Exit status 0: every element verified, nothing left behind."""
    argparse.ArgumentParser(prog="python -m mkernel.demo", description=(__doc__ or "").partition(": ")[2]).parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what follows is cleaned up
    with tempfile.TemporaryDirectory(prefix="mkernel-demo-") as work:
        demo = Demo(pathlib.Path(work))
        try:
            demo.run()
        except (DemoError, subprocess.TimeoutExpired) as error:
            print(f"demo: {error}")
            return 1
        finally:
            demo.end_all()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
