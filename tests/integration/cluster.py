"""Real processes for the integration tests: daemons on loopback, ranks, mkctl. Everything is bounded in time, every
process is ended by its pid, and a test that leaves anything behind fails."""
import atexit
import contextlib
import fcntl
import functools
import json
import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

BIN = pathlib.Path(os.environ.get("MKERNEL_BIN", "build/bin")).resolve()
# Sanitizer builds and loaded machines are slow: limits below are generous, and none of them is what a test asserts.
PATIENCE = float(os.environ.get("MKERNEL_PATIENCE", "60"))


def read_threads(pid, file):
    """/proc/PID/task/THREAD/FILE of each thread. A thread that ends meanwhile is left out; a process that ended has none."""
    tasks, texts = f"/proc/{pid}/task", []
    ended = lambda: contextlib.suppress(FileNotFoundError, ProcessLookupError)
    with ended():
        for thread in os.listdir(tasks):
            with ended():
                texts.append(pathlib.Path(tasks, thread, file).read_text())
    return texts


def wait_until(condition, what, seconds=PATIENCE):
    """Polls `condition` until it returns something true, and returns that."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds:.0f} s: {what}")


def program(name):
    """A program of the tests: beside this file in a bundle, else where everything is built."""
    beside = pathlib.Path(__file__).resolve().parent / name
    return beside if beside.exists() else BIN / name


@functools.cache
def gpus_or_skip():
    """How many GPUs there are; without one the whole test ends here, skipped with the reason."""
    found = subprocess.run([program("symmetric_rank"), "devices"], capture_output=True, text=True, timeout=60)
    if found.returncode == 77:
        print(found.stdout.strip())
        sys.exit(77)
    if found.returncode != 0:
        sys.exit(f"counting GPUs failed ({found.returncode}): {found.stdout}{found.stderr}")
    count = int(found.stdout)
    print(f"{count} GPUs")
    return count


@functools.cache
def _free_memory(device):
    """A process that tells that GPU's free memory for every line it reads, and ends with this program. One for all readings: making a
    context takes longer than most of what the readings wait for."""
    reader = subprocess.Popen([program("symmetric_rank"), "free", str(device)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def end():
        reader.stdin.close()
        try:
            reader.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            reader.kill()
            reader.wait()

    atexit.register(end)
    return reader


def free_bytes(device):
    """Of that GPU's memory."""
    reader = _free_memory(device)
    print(file=reader.stdin, flush=True)
    if not select.select([reader.stdout], [], [], PATIENCE)[0]:
        raise AssertionError(f"not within {PATIENCE:.0f} s: the free memory of GPU {device}")
    line = reader.stdout.readline()
    if not line.strip().isdigit():
        raise AssertionError(f"the free memory of GPU {device}: {line}{reader.stdout.read()}")
    return int(line)


class PortRange:
    """Ports for listeners, below those that the kernel gives to outgoing connections. A port found free is taken only
    when somebody listens on it, and test programs run side by side: so a program locks the byte of a shared file that
    stands for its port (the lock ends with the program), and walks on through the range, so that its own next call
    does not find the same port."""

    FIRST, END = 12000, 32000

    def __init__(self):
        self.next = self.FIRST + os.getpid() % (self.END - self.FIRST)
        self.file = None

    def take(self):
        if self.file is None:
            self.file = open(pathlib.Path(tempfile.gettempdir()) / f"mkernel-test-ports-{os.getuid()}", "a+b")
        for _ in range(self.FIRST, self.END):
            port = self.next
            self.next = self.FIRST + (port + 1 - self.FIRST) % (self.END - self.FIRST)
            try:
                fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
        raise AssertionError(f"no port from {self.FIRST} to {self.END} is free")


_ports = PortRange()


def free_ports(count):
    """Ports that nobody listens on now and that no other test program will take while this one runs."""
    return [_ports.take() for _ in range(count)]


class Daemon:
    """One mkerneld. `settings` is a dict of sections over the defaults that a loopback node needs."""

    def __init__(self, folder, name, port, peers, settings=None, prefix=(), host="127.0.0.1"):
        self.name, self.folder, self.prefix = name, folder / name, list(prefix)
        self.folder.mkdir(parents=True, exist_ok=True)
        sections = {
            "node": {"name": name, "runtime_dir": str(self.folder)},
            "peers": {"listen": f"{host}:{port}", "list": peers, "time_scale": 0.1},
            "transport": {"kind": "tcp", "peer_timeout_ms": 5000},
            "transport.tcp": {"bind": host, "insecure": not host.startswith("127.")},
        }
        for section, keys in (settings or {}).items():
            sections.setdefault(section, {}).update(keys)
        self.config = self.folder / "mkerneld.toml"
        self.write_config(sections)
        self.socket, self.control = self.folder / "mkerneld.sock", self.folder / "control.sock"
        self.log = self.folder / "log"
        self.process = None

    def write_config(self, sections):
        self.sections = sections
        lines = []
        for section, keys in sections.items():
            lines.append(f"[{section}]")
            lines += [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
        self.config.write_text("\n".join(lines) + "\n")

    def start(self):
        self.launch()
        return self.wait_for_answer()

    def launch(self):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([*self.prefix, BIN / "mkerneld", "--config", self.config], stderr=log)

    def wait_for_answer(self):
        wait_until(self.answers, f"{self.name} answers: {self.tail()}")
        return self

    def answers(self):
        if self.process.poll() is not None:
            raise AssertionError(f"{self.name} ended with {self.process.returncode}:\n{self.tail()}")
        return self.mkctl("status", check=False).returncode in (0, 1)

    def tail(self):
        return self.log.read_text(errors="replace")[-4000:] if self.log.exists() else ""

    def open_fds(self):
        """What each fd of the daemon is, for a message."""
        return subprocess.run(["ls", "-l", f"/proc/{self.process.pid}/fd"], capture_output=True, text=True).stdout

    def mkctl(self, *arguments, check=True):
        # A busy machine may take longer than mkctl's own two seconds.
        run = subprocess.run([BIN / "mkctl", "--socket", self.control, "--timeout", str(PATIENCE / 2), *arguments], capture_output=True, text=True,
                             timeout=PATIENCE)
        if check and run.returncode != 0:
            raise AssertionError(f"mkctl {arguments}: exit {run.returncode}\n{run.stdout}{run.stderr}")
        return run

    def show(self, table):
        """Rows of a table as dicts."""
        answer = json.loads(self.mkctl(table, "-o", "json").stdout)
        return answer[table] if isinstance(answer, dict) else answer

    def resources(self):
        """(fds, threads, mappings of shared memory) of the daemon."""
        proc = pathlib.Path(f"/proc/{self.process.pid}")
        maps = (proc / "maps").read_text().count("memfd:")
        return len(list((proc / "fd").iterdir())), len(list((proc / "task").iterdir())), maps

    def pause(self):
        """SIGSTOP; returns when the last of its threads has stopped."""
        self.process.send_signal(signal.SIGSTOP)
        states = lambda: {stat.rpartition(")")[2].split()[0] for stat in read_threads(self.process.pid, "stat")}
        wait_until(lambda: states() == {"T"}, f"{self.name} stops")

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE)

    def stop(self):
        """SIGTERM; returns the exit status."""
        if self.process is None or self.process.poll() is not None:
            return None
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} did not stop on SIGTERM:\n{self.tail()}")


class ClusterTest(unittest.TestCase):
    """Base of the tests: a folder, daemons and ranks that are ended whatever happens."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="mkernel-"))
        self.daemons, self.processes = [], []

    def tearDown(self):
        problems = []
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
        for daemon in self.daemons:
            try:
                if daemon.stop() not in (None, 0, -signal.SIGKILL):
                    problems.append(f"{daemon.name} ended with {daemon.process.returncode}:\n{daemon.tail()}")
            except AssertionError as error:
                problems.append(str(error))
        shutil.rmtree(self.folder, ignore_errors=True)
        self.assertEqual(problems, [])

    def start_nodes(self, count, settings=None):
        """Daemons that know each other, peers alive."""
        ports = free_ports(count)
        for i in range(count):
            peers = [f"127.0.0.1:{port}" for j, port in enumerate(ports) if j != i]
            self.daemons.append(Daemon(self.folder, f"node{i}", ports[i], peers, settings))
        for daemon in self.daemons:
            daemon.launch()
        for daemon in self.daemons:
            daemon.wait_for_answer()
        for daemon in self.daemons:
            self.wait_for_peers(daemon, count - 1)
        return self.daemons

    def wait_for_peers(self, daemon, count):
        wait_until(lambda: sum(p["state"] == "alive" for p in daemon.show("peers")) >= count,
                   f"{daemon.name} sees {count} peers alive")

    def spawn(self, *command, stdin=None, preexec_fn=None, **environment):
        process = subprocess.Popen([str(c) for c in command], stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   preexec_fn=preexec_fn, env={**os.environ, **{k: str(v) for k, v in environment.items()}})
        self.processes.append(process)
        return process

    def finish(self, process, seconds=PATIENCE):
        """(exit status, stdout, stderr) of a process that must end by itself."""
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"hangs: {process.args}\n{out}\n{err}")
        return process.returncode, out, err

    def bench(self, rank, world, daemon, *arguments, group="test", **environment):
        """One rank of `mkbench op`."""
        return self.spawn(BIN / "mkbench", "op", "--group", group, "--daemon", daemon.socket, *arguments,
                          RANK=rank, WORLD_SIZE=world, **environment)

    def bench_all(self, *arguments, ranks_per_node=2, group="test"):
        """All ranks of one `mkbench op` over all daemons; every one must succeed. Returns rank 0's output."""
        world = ranks_per_node * len(self.daemons)
        ranks = [self.bench(r, world, self.daemons[r // ranks_per_node], *arguments, group=group) for r in range(world)]
        outputs = [self.finish(r, 4 * PATIENCE) for r in ranks]
        for rank, (status, out, err) in enumerate(outputs):
            self.assertEqual(status, 0, f"rank {rank}:\n{out}{err}")
        return outputs[0][1]
