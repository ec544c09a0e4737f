"""Device endpoints: kernels that put, signal and wait, against real daemons. Ranks take the GPUs of the machine in turn, so one
GPU is enough: ranks that share it run at the same time under MPS, in time slices without it and where ranks are killed. Skipped, with the reason, where there is none."""
import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "integration"), str(HERE)]  # the latter in a bundle, where the tests lie in one folder
from cluster import ClusterTest, gpus_or_skip, program  # noqa: E402
from mps import RanksAtOnce  # noqa: E402


class DeviceRanksTest(ClusterTest):
    def spawn_ranks(self, name, world, *arguments, ranks_per_node=None, group="device"):
        per_node = ranks_per_node or world
        return [self.spawn(program(name), self.daemons[r // per_node].socket, group, world, r, r % GPUS, *arguments)
                for r in range(world)]

    def succeed(self, ranks, *expected):
        for rank in ranks:
            status, out, err = self.finish(rank)
            self.assertEqual(status, 0, out + err)
            for part in expected:
                self.assertIn(part, out)

    def refused(self, rank, *expected):
        status, out, err = self.finish(rank)
        self.assertEqual(status, 3, out + err)
        for part in expected:
            self.assertIn(part, out)


class DeviceGpuTest(RanksAtOnce, DeviceRanksTest):
    def test_signals_through_a_small_ring(self):
        """Far more signals than slots, from the GPU and from a thread at once: the rings are full all the time, lap many times,
        and everything arrives once."""
        self.start_nodes(1, {"proxy": {"ring_slots": 64}})
        for world in (1, 2):
            self.succeed(self.spawn_ranks("device_rank", world, "signals", 5000))

    def test_signals_to_other_nodes(self):
        self.start_nodes(2)
        self.succeed(self.spawn_ranks("device_rank", 2, "signals", 2000, ranks_per_node=1))

    def test_a_deadline_says_who_waited_for_whom(self):
        self.start_nodes(1)
        for r, rank in enumerate(self.spawn_ranks("device_rank", 2, "wait", 500)):
            status, out, err = self.finish(rank)
            self.assertEqual(status, 3, out + err)
            self.assertIn("DEADLINE_EXCEEDED", out)
            # Whose deadline came first says so; the other one may have heard of it before its own. On a GPU that others use too the
            # kernel may look at its clock later.
            self.assertRegex(out, r"rank \d kernel: arrivals of rank \d lane 0: expected 1, seen 0 after (0\.[5-9]|[1-9]\.\d) s")

    def test_a_session_without_gpu_is_refused(self):
        self.start_nodes(1)
        rank = self.spawn(program("device_rank"), self.daemons[0].socket, "none", 1, 0, -1, "wait", 100)
        status, out, err = self.finish(rank)
        self.assertEqual(status, 3, out + err)
        self.assertIn("host memory only", out)


class AllToAllGpuTest(DeviceRanksTest):
    """A CTA of every rank on every multiprocessor: those of three ranks do not fit a GPU at the same time."""

    def test_all_to_all_on_a_node(self):
        """NVLink, in a graph: data changes with every replay."""
        self.start_nodes(1)
        for world, size in ((1, 4096), (2, 16), (2, 1 << 20), (3, 48 * 1001)):
            with self.subTest(world=world, size=size):
                self.succeed(self.spawn_ranks("all_to_all", world, size, 20), "20 rounds, 0 of ", "1 nodes")

    def test_all_to_all_across_nodes(self):
        """One launch: NVLink inside the nodes, puts between them, both at once where a node has two ranks."""
        self.start_nodes(2, {"transport": {"kind": "emulated", "gpu_memory": True}})
        for per_node, size in ((1, 4096), (1, 4 << 20), (2, 1 << 20), (2, 48 * 1001)):
            with self.subTest(per_node=per_node, size=size):
                self.succeed(self.spawn_ranks("all_to_all", 2 * per_node, size, 10, ranks_per_node=per_node),
                             "10 rounds, 0 of ", "2 nodes")


class DeviceKillsGpuTest(DeviceRanksTest):
    def test_kill_of_the_daemon_in_mid_kernel(self):
        node = self.start_nodes(1)[0]
        ranks = self.spawn_ranks("device_rank", 2, "wait", 50000)
        for rank in ranks:
            self.assertEqual(rank.stdout.readline(), "launched\n")
        node.kill()
        for r, rank in enumerate(ranks):
            self.refused(rank, "UNAVAILABLE", "node0", f"while rank {r} kernel: arrivals of rank {1 - r} lane 0")

    def test_kill_of_the_awaited_rank(self):
        self.start_nodes(1)
        survivor, killed = self.spawn_ranks("device_rank", 2, "wait", 50000)
        for rank in (survivor, killed):
            self.assertEqual(rank.stdout.readline(), "launched\n")
        killed.kill()
        self.refused(survivor, "UNAVAILABLE", "rank 1", "while rank 0 kernel: arrivals of rank 1 lane 0")


if __name__ == "__main__":
    GPUS = gpus_or_skip()
    unittest.main(verbosity=2)
