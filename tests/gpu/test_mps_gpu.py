"""Ranks of one GPU that run at the same time: processes under a private MPS daemon, each with its share of the multiprocessors.
CUDA loads a kernel at its first launch, and under MPS that waits for the kernels of the other ranks, which wait for this one: an
operation whose kernels are not loaded when it is made hangs to its deadline. Skipped, with the reason, without a GPU or without
nvidia-cuda-mps-control."""
import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "integration"), str(HERE)]  # the latter in a bundle, where the tests lie in one folder
from cluster import ClusterTest, gpus_or_skip  # noqa: E402
from mps import CONTROL, Mps, RanksAtOnce  # noqa: E402

DEADLINE = 15  # seconds of one wait: a launch that loads its kernel ends there


class MpsTest(RanksAtOnce, ClusterTest):
    RANKS = sys.maxsize  # with any number of GPUs: all ranks are on the first one

    def setUp(self):
        super().setUp()
        self.node = self.start_nodes(1)[0]

    def verified(self, world, op, *arguments):
        ranks = [self.bench(rank, world, self.node, op, "--executor", "cuda", "--device", "0", "--share", world, "--iterations", "3",
                            "--deadline", DEADLINE, *arguments, group=f"{op}-{world}-{len(arguments)}", CUDA_MODULE_LOADING="LAZY")
                 for rank in range(world)]
        for rank, (status, out, err) in enumerate([self.finish(process) for process in ranks]):
            self.assertEqual(status, 0, f"rank {rank}: {out}{err}")
            if rank == 0:
                self.assertIn("verified", out)
                print(out)

    def test_operations_load_their_kernels_when_they_are_made(self):
        for world in (2, 4):
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
    if not Mps.installed():
        print(f"skipped: {CONTROL} is not installed")
        sys.exit(77)
    gpus_or_skip()
    unittest.main(verbosity=2)
