"""Ranks of one GPU that run at the same time: processes under a private MPS daemon, each with its share of the multiprocessors.
CUDA loads a kernel at its first launch, and under MPS that waits for the kernels of the other ranks, which wait for this one: an
operation whose kernels are not loaded when it is made hangs to its deadline. Skipped, with the reason, without a GPU or without
nvidia-cuda-mps-control."""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "integration"), str(HERE)]  # the latter in a bundle, where the tests lie in one folder
from cluster import ClusterTest, gpus_or_skip, wait_until  # noqa: E402

CONTROL = "nvidia-cuda-mps-control"
DEADLINE = 15  # seconds of one wait: a launch that loads its kernel ends there
SHARE = {2: 48, 4: 24}  # multiprocessors of a rank, on any Hopper GPU


class MpsTest(ClusterTest):
    def setUp(self):
        super().setUp()
        self.environment = {"CUDA_MPS_PIPE_DIRECTORY": self.folder / "mps", "CUDA_MPS_LOG_DIRECTORY": self.folder / "mps-log"}
        for folder in self.environment.values():
            folder.mkdir()
        self.addCleanup(self.end_mps)  # before anything can fail; the ranks are gone by then (tearDown)
        started = self.control("-d")
        self.assertEqual(started.returncode, 0, started.stdout + started.stderr)
        wait_until(lambda: self.control(say="get_server_list").returncode == 0, f"{CONTROL} answers", 20)
        self.node = self.start_nodes(1)[0]

    def control(self, *arguments, say=None):
        environment = {**os.environ, **{name: str(value) for name, value in self.environment.items()}}
        return subprocess.run([CONTROL, *arguments], input=None if say is None else say + "\n", env=environment, capture_output=True,
                              text=True, timeout=30)

    def end_mps(self):
        """By its own command, else by the process numbers that it has written down."""
        if not self.environment["CUDA_MPS_PIPE_DIRECTORY"].exists():
            return  # it has ended, and its folder is gone
        pids = [int(file.read_text()) for file in self.environment["CUDA_MPS_PIPE_DIRECTORY"].glob("*.pid")]
        try:
            self.control(say="quit")
        except subprocess.TimeoutExpired:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        for pid in pids:
            wait_until(lambda p=pid: not pathlib.Path(f"/proc/{p}").exists(), f"process {pid} of MPS ends", 20)

    def tearDown(self):
        # The folder is removed here, so MPS has to be gone before; the clean-up finds nothing left then.
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        self.end_mps()
        super().tearDown()

    def verified(self, world, op, *arguments):
        ranks = [self.bench(rank, world, self.node, op, "--executor", "cuda", "--device", "0", "--sms", SHARE[world], "--iterations", "3",
                            "--deadline", DEADLINE, *arguments, group=f"{op}-{world}-{len(arguments)}", CUDA_MODULE_LOADING="LAZY",
                            **self.environment) for rank in range(world)]
        for rank, (status, out, err) in enumerate([self.finish(process) for process in ranks]):
            self.assertEqual(status, 0, f"rank {rank}: {out}{err}")
            if rank == 0:
                self.assertIn("verified", out)
                print(out)

    def test_operations_load_their_kernels_when_they_are_made(self):
        for world in SHARE:
            for op, m, n, k in (("ag_gemm", 1024, 512, 1024), ("gemm_rs", 1024, 512, 512), ("gemm_ar", 1024, 512, 512)):
                with self.subTest(op=op, world=world):
                    self.verified(world, op, "--m", m, "--n", n, "--k", k)

    def test_a_traced_launch_loads_nothing(self):
        for op in ("ag_gemm", "gemm_ar"):
            with self.subTest(op=op):
                path = self.folder / f"{op}.json"
                self.verified(2, op, "--m", 1024, "--n", 512, "--k", 512, "--trace", path)
                self.assertGreater(path.stat().st_size, 0)


if __name__ == "__main__":
    if shutil.which(CONTROL) is None:
        print(f"skipped: {CONTROL} is not installed")
        sys.exit(77)
    gpus_or_skip()
    unittest.main(verbosity=2)
