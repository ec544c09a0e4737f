"""Symmetric GPU memory: ranks that are processes, a real daemon, real GPUs. Ranks take the GPUs of the machine in turn, so
one GPU is enough, and with two or more the stores go over NVLink. Ranks that share a GPU run at the same time under MPS, in time slices
without it and where ranks are killed or memory is counted. Skipped, with the reason, where there is none."""
import os
import pathlib
import stat
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "integration"), str(HERE)]  # the latter in a bundle, where the tests lie in one folder
from cluster import ClusterTest, free_bytes, gpus_or_skip, program, wait_until  # noqa: E402
from mps import RanksAtOnce  # noqa: E402

GIB = 1 << 30


class SymmetricRanksTest(ClusterTest):
    def setUp(self):
        super().setUp()
        self.node = self.start_nodes(1)[0]

    def rank(self, rank, world, size, mode="check", group="gpu", device=None):
        process = self.spawn(program("symmetric_rank"), "run", self.node.socket, group, world, rank,
                             rank % GPUS if device is None else device, size, mode, stdin=subprocess.PIPE)
        self.addCleanup(process.stdin.close)
        return process

    def outcomes(self, ranks):
        return [self.finish(rank) for rank in ranks]

    def refused(self, ranks, *expected):
        """Every rank must be refused with a text that holds every part of `expected`."""
        for status, out, err in self.outcomes(ranks):
            self.assertEqual(status, 3, out + err)
            for part in expected:
                self.assertIn(part, out)

    def gpu_files(self):
        """Open files of the NVIDIA driver's devices (major 195) in the daemon, which has loaded no driver."""
        folder = pathlib.Path(f"/proc/{self.node.process.pid}/fd")
        stats = [os.stat(folder / fd) for fd in os.listdir(folder)]
        return sum(stat.S_ISCHR(s.st_mode) and os.major(s.st_rdev) == 195 for s in stats)

    def hold(self, count, size):
        """Ranks that have their buffers and wait."""
        ranks = [self.rank(r, count, size, "hold") for r in range(count)]
        for rank in ranks:
            self.assertEqual(rank.stdout.readline(), "ready\n")
        return ranks

    def wait_for(self, free, resources):
        """The GPUs' free memory and the daemon's resources are what they were, to the byte; the daemon lives."""
        seen = []
        try:
            wait_until(lambda: seen.append([free_bytes(d) for d in range(len(free))]) or seen[-1] == free, "free memory")
        except AssertionError:
            self.fail(f"free memory is {seen[-1]}, it was {free}")
        wait_until(lambda: self.node.resources() <= resources, f"the daemon's resources are {resources} again")

    def tell(self, process):
        process.stdin.write("go on\n")
        process.stdin.flush()


class SymmetricGpuTest(RanksAtOnce, SymmetricRanksTest):
    def test_every_rank_writes_into_every_buffer(self):
        for world, size in ((1, 8), (2, 64 * 1024 * 1024), (2, (2 << 20) + 8 * 1001), (4, 12_345_672), (3, 1 << 20)):
            with self.subTest(world=world, size=size):
                for status, out, err in self.outcomes([self.rank(r, world, size) for r in range(world)]):
                    self.assertEqual(status, 0, out + err)
                    self.assertEqual(out.count(": 0 of "), 2, out)
                    self.assertEqual(out.count(f", {world} buffers"), 2, out)
        wait_until(lambda: self.node.show("regions") == [], "the daemon lets go of every region")

    def test_mkctl_shows_kind_device_and_bytes(self):
        ranks = self.hold(2, 3 << 20)
        rows = self.node.show("regions")
        self.assertEqual(sorted((r["kind"], r["device"], r["bytes"], r["shared"]) for r in rows),
                         [("vmm", r % GPUS, 4 << 20, True) for r in range(2)])
        self.assertEqual([s["gpu_bytes"] for s in self.node.show("sessions")], [4 << 20] * 2)
        self.assertEqual(self.gpu_files(), 2)
        print(self.node.mkctl("regions").stdout)
        for rank in ranks:
            self.tell(rank)
        for rank in ranks:
            self.assertEqual(rank.stdout.readline(), "OK\n")

    def test_errors_name_rank_and_cause(self):
        self.refused([self.rank(r, 2, (2 << 20) + r) for r in range(2)],
                     "INVALID_ARGUMENT", "rank 0 on node node0 made 'symmetric buffer of 2097152 bytes of GPU memory'",
                     "rank 1 on node node0 made 'symmetric buffer of 2097153 bytes of GPU memory'")
        self.refused([self.rank(r, 2, 1 << 20, device=(0, 99)[r]) for r in range(2)],
                     "FAILED_PRECONDITION", "rank 1 on node node0",
                     f"memory of GPU 99: there is no GPU 99: this process sees {GPUS}")
        self.refused([self.rank(r, 2, 900 * GIB) for r in range(2)],
                     "RESOURCE_EXHAUSTED", f"cuMemCreate of {900 * GIB} bytes on GPU 0", "CUDA_ERROR_OUT_OF_MEMORY",
                     "bytes are free")

    def test_a_transport_without_gpu_memory_refuses_puts_by_name(self):
        out = "".join(o[1] for o in self.outcomes([self.rank(r, 2, 1 << 20, "put") for r in range(2)]))
        self.assertIn("FAILED_PRECONDITION", out)
        self.assertIn("is GPU memory", out)


class SymmetricKillsGpuTest(SymmetricRanksTest):
    def test_kill_gives_back_the_memory(self):
        """A handle or fd that stays behind keeps the memory of a dead process, with nobody to blame."""
        used = range(min(GPUS, 2))
        free, resources = [free_bytes(d) for d in used], self.node.resources()
        survivor, killed = self.hold(2, 4 * GIB)
        held = [free_bytes(d) for d in used]
        self.assertGreaterEqual(sum(free) - sum(held), 8 * GIB)
        killed.kill()
        killed.wait(30)
        self.tell(survivor)
        error = survivor.stdout.readline()
        self.assertIn("UNAVAILABLE", error)
        self.assertIn("rank 1", error)
        self.assertEqual(survivor.stdout.readline(), "gone\n")
        # What the survivor's context takes is left, its buffer and its mapping of the dead rank's are not.
        wait_until(lambda: sum(free) - sum(free_bytes(d) for d in used) < 2 * GIB, "the survivor's memory is free")
        self.tell(survivor)
        self.assertEqual(self.finish(survivor)[0], 0)
        self.wait_for(free, resources)
        print(f"free before {free}, held {held}, after {[free_bytes(d) for d in used]}")

    def test_kill_of_all_ranks(self):
        used = range(min(GPUS, 2))
        free, resources = [free_bytes(d) for d in used], self.node.resources()
        for rank in self.hold(2, 4 * GIB):
            rank.kill()
            rank.wait(30)
        self.wait_for(free, resources)


if __name__ == "__main__":
    GPUS = gpus_or_skip()
    unittest.main(verbosity=2)
