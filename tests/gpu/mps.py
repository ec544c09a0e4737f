"""Processes that share a GPU and run at the same time: a private MPS server of NVIDIA's, and a base for tests whose ranks use it.
Without such a server processes have a GPU in turns of milliseconds, and a rank that waits for another one waits for its turn."""
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import unittest.mock

from cluster import gpus_or_skip, wait_until

CONTROL = "nvidia-cuda-mps-control"
PATIENCE = 20  # seconds for the server to start and to end


class Mps:
    """One MPS server with folders of its own. Its clients are the processes that start with `environment`; it gives none of them a
    part of the GPU, so their kernels have to leave each other room. start() and end(), or a `with` statement.

    A client that is killed while its kernels run can take the server and all other clients with it: NVIDIA promises nothing there."""

    def __init__(self):
        self.folder = None
        self.environment = {}

    @staticmethod
    def installed():
        return shutil.which(CONTROL) is not None

    def start(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="mkernel-mps-"))
        self.environment = {"CUDA_MPS_PIPE_DIRECTORY": str(self.folder / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(self.folder / "log"),
                            # CUDA loads a kernel at its first launch, and here that waits for the kernels of the other clients.
                            "CUDA_MODULE_LOADING": "EAGER"}
        for name in ("pipe", "log"):
            (self.folder / name).mkdir()
        try:
            started = self._control("-d")
            if started.returncode != 0:
                raise AssertionError(f"{CONTROL} -d: {started.stdout}{started.stderr}")
            wait_until(lambda: self._control(say="get_server_list").returncode == 0, f"{CONTROL} answers", PATIENCE)
        except BaseException:
            self.end()
            raise
        return self

    def end(self):
        """Whatever state it is in: by its own command, else by the process numbers that it has written down."""
        if self.folder is None:
            return
        pids = self._pids()
        try:
            self._control(say="quit")
            wait_until(lambda: not any(map(running, pids)), "MPS ends", PATIENCE)
        except (subprocess.TimeoutExpired, AssertionError):
            for pid in filter(running, pids):
                os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not any(map(running, pids)), f"processes {pids} of MPS end", PATIENCE)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = None

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.end()

    def _control(self, *arguments, say=None):
        return subprocess.run([CONTROL, *arguments], input=None if say is None else say + "\n", env={**os.environ, **self.environment},
                              stdin=subprocess.DEVNULL if say is None else None, capture_output=True, text=True, timeout=PATIENCE)

    def _pids(self):
        """Of the control daemon and of its servers."""
        written = [file.read_text().strip() for file in (self.folder / "pipe").glob("*.pid")]
        try:
            written += self._control(say="get_server_list").stdout.split()
        except (subprocess.TimeoutExpired, OSError):
            pass
        return sorted({int(pid) for pid in written if pid.isdigit()})


def running(pid):
    """Whether the process is there and has not ended: a zombie has."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


class RanksAtOnce:
    """Mixed into a test case, before its base: daemons and ranks are clients of one MPS server where `RANKS`, the most ranks of a
    test, are more than there are GPUs. Not for tests that kill a rank or a daemon."""

    RANKS = 4
    mps = None

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if gpus_or_skip() >= cls.RANKS:
            return
        if not Mps.installed():
            print(f"{cls.__name__}: ranks share a GPU in turns, {CONTROL} is not installed")
            return
        cls.mps = Mps().start()
        cls.addClassCleanup(cls.mps.end)
        environment = unittest.mock.patch.dict(os.environ, cls.mps.environment)
        environment.start()
        cls.addClassCleanup(environment.stop)
