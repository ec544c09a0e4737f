"""GPU memory that is registered by pointer: ranks that are processes and allocate with cudaMalloc or PyTorch, real daemons,
real GPUs. Where there are fewer, ranks share them: at the same time under MPS, in time slices without it and where ranks are killed.
Skipped, with the reason, where there is none."""
import os
import pathlib
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "integration"), str(HERE)]  # the latter in a bundle, where the tests lie in one folder
from cluster import ClusterTest, free_bytes, gpus_or_skip, program, wait_until  # noqa: E402
from mps import RanksAtOnce  # noqa: E402

MIB, GIB = 1 << 20, 1 << 30


class RegisteredRanksTest(ClusterTest):
    def rank(self, node, rank, world, size, mode, group="gpu"):
        process = self.spawn(program("registered_rank"), node.socket, group, world, rank, rank % GPUS, size, mode,
                             stdin=subprocess.PIPE)
        self.addCleanup(process.stdin.close)
        return process

    def ranks(self, world, size, mode, group="gpu"):
        """Rank by rank on the daemons in turn."""
        return [self.rank(self.daemons[r * len(self.daemons) // world], r, world, size, mode, group) for r in range(world)]

    def verified(self, ranks, lines):
        for rank in ranks:
            status, out, err = self.finish(rank, 120)
            self.assertEqual(status, 0, out + err)
            self.assertEqual(out.count(", 0 around them"), lines, out)
            self.assertEqual(out.count(": 0 "), lines, out)

    def ready(self, ranks):
        for rank in ranks:
            self.assertEqual(rank.stdout.readline(), "ready\n")
        return ranks

    def tell(self, process):
        process.stdin.write("go on\n")
        process.stdin.flush()

    def dma_bufs(self, node):
        folder = pathlib.Path(f"/proc/{node.process.pid}/fd")
        return sum(os.readlink(folder / fd) == "/dmabuf:" for fd in os.listdir(folder))

    def wait_for(self, free, resources):
        """The GPUs' free memory and the daemons' resources are what they were, to the byte; the daemons live."""
        seen = []
        try:
            wait_until(lambda: seen.append([free_bytes(d) for d in range(len(free))]) or seen[-1] == free, "free memory")
        except AssertionError:
            self.fail(f"free memory is {seen[-1]}, it was {free}")
        for node, before in zip(self.daemons, resources):
            wait_until(lambda: node.resources() <= before, f"the resources of {node.name} are {before} again")
            self.assertEqual(self.dma_bufs(node), 0)

    def now(self):
        return [free_bytes(d) for d in range(min(GPUS, 2))], [node.resources() for node in self.daemons]

    def start(self, kind, **limits):
        return self.start_nodes(2, {"transport": {"kind": kind, "gpu_memory": True}, "limits": limits})


class RegisteredGpuTest(RanksAtOnce, RegisteredRanksTest):
    def test_every_rank_writes_into_every_buffer(self):
        self.start_nodes(1)
        for world, size in ((1, 1), (2, 8 * MIB + 3), (2, 100), (4, 1_234_567)):
            with self.subTest(world=world, size=size):
                self.verified(self.ranks(world, size, "share"), 2)
        wait_until(lambda: self.daemons[0].show("regions") == [], "the daemon lets go of every region")

    def test_ranks_that_are_threads_of_one_process(self):
        node = self.start_nodes(1)[0]
        process = self.spawn(program("registered_rank"), node.socket, "threads", 3, 0, GPUS, 1_000_003, "threads")
        status, out, err = self.finish(process, 120)
        self.assertEqual(status, 0, out + err)
        self.assertEqual(out.count("0 of 1000003 bytes wrong, 0 around them"), 6, out)

    def test_mkctl_shows_what_a_nic_would_register(self):
        node = self.start_nodes(1)[0]
        ranks = self.ready(self.ranks(2, 5_000_001, "hold"))
        rows = node.show("regions")
        print(node.mkctl("regions").stdout)
        self.assertEqual(sorted((r["kind"], r["device"], r["bytes"], r["shared"]) for r in rows),
                         sorted(("ipc", r % GPUS, 5_000_001, True) for r in range(2)))
        with_dma_buf = [r for r in rows if r["dma_buf"] == "yes"]
        self.assertEqual(self.dma_bufs(node), len(with_dma_buf))
        for row in rows:
            self.assertTrue(row["dma_buf"] == "yes" or "cuMemGetHandleForAddressRange" in row["dma_buf"], row)
        for rank in ranks:
            self.tell(rank)
        for rank in ranks:
            self.assertEqual(rank.stdout.readline(), "OK\n")
            self.assertEqual(rank.stdout.readline(), "gone\n")
        # The memory is free of writers when a rank has ended its part; its fds are closed on a thread of their own.
        wait_until(lambda: self.dma_bufs(node) == 0, "the dma-bufs are closed")

    def test_errors_say_what_to_do(self):
        self.start_nodes(1)
        ranks = self.ranks(2, 10_000, "errors")
        for status, out, err in [self.finish(rank) for rank in ranks]:
            self.assertEqual(status, 0, out + err)
            said = dict(line.split(": ", 1) for line in out.splitlines())
            for case, code, text in (
                    ("host", "INVALID_ARGUMENT", "are not memory of a GPU"), ("null", "INVALID_ARGUMENT", "bytes at 0x0"),
                    ("pinned host", "INVALID_ARGUMENT", "are not memory of a GPU"),
                    ("beyond", "OUT_OF_RANGE", "the allocation there ends after 11237"),
                    ("sizes", "INVALID_ARGUMENT", "'registration of 101 bytes of GPU memory'"),
                    ("pooled", "FAILED_PRECONDITION", "symmetric_gpu()"),
                    ("vmm", "FAILED_PRECONDITION", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False"),
                    ("good", "OK", ""), ("again", "OK", "")):
                self.assertIn(code, said[case])
                self.assertIn(text, said[case])

    def test_puts_of_every_size_and_offset(self):
        for kind in ("emulated", "tcp"):
            with self.subTest(transport=kind):
                self.start(kind)
                self.verified(self.ranks(2, 6 * MIB + 5, "put", kind), 3)
                for node in self.daemons:
                    wait_until(lambda: node.show("regions") == [], "the daemons let go of every region")
                    self.assertEqual(node.stop(), 0)
                self.daemons = []

    def start_torch(self, group, **environment):
        environment["CUDA_MODULE_LOADING"] = "LAZY"  # PyTorch has thousands of kernels, and none that these ranks launch waits for another
        library = next(path for path in (program("registered_rank").parents[1] / "lib").glob("libmkernel.so*"))
        return [self.spawn(sys.executable, HERE / "torch_rank.py", library, self.daemons[0].socket, group, 2, r, r % GPUS, **environment)
                for r in range(2)]

    def finish_torch(self, ranks):
        outcomes = [self.finish(rank, 120) for rank in ranks]
        if any(status == 77 for status, _, _ in outcomes):
            self.skipTest(outcomes[0][1])
        return outcomes

    def test_tensors(self):
        """A slice of a tensor; expandable segments are refused with what to do. Both start together: importing PyTorch takes longest."""
        self.start_nodes(1)
        slices = self.start_torch("slice")
        expandable = self.start_torch("expandable", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
        for status, out, err in self.finish_torch(slices):
            self.assertEqual(status, 0, out + err)
            self.assertEqual(out.count(": 0 of 3000001 bytes wrong, 0 around them"), 2, out)
        for status, out, err in self.finish_torch(expandable):
            self.assertEqual(status, 3, out + err)
            self.assertIn("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False", out)


class RegisteredKillsGpuTest(RegisteredRanksTest):
    def test_kill_gives_back_the_memory(self):
        """Who exports dies, who has it open lives on; then all die. Each holds what the other allocated."""
        self.start_nodes(1)
        free, resources = self.now()
        survivor, killed = self.ready(self.ranks(2, 4 * GIB, "hold"))
        held = self.now()[0]
        self.assertGreaterEqual(sum(free) - sum(held), 8 * GIB)
        killed.kill()
        killed.wait(30)
        self.tell(survivor)
        error = survivor.stdout.readline()
        self.assertIn("UNAVAILABLE", error)
        self.assertIn("rank 1", error)
        self.assertEqual(survivor.stdout.readline(), "gone\n")
        # What the survivor's context takes is left, its memory and what it had opened of the dead rank's are not.
        wait_until(lambda: sum(free) - sum(self.now()[0]) < 2 * GIB, "the survivor's memory is free")
        self.tell(survivor)
        self.assertEqual(self.finish(survivor)[0], 0)
        self.wait_for(free, resources)
        print(f"free before {free}, held {held}, after {self.now()[0]}")
        for rank in self.ready(self.ranks(2, 4 * GIB, "hold", "again")):
            rank.kill()
            rank.wait(30)
        self.wait_for(free, resources)

    def kill_in_mid_traffic(self, victim, group):
        """The GPUs' free memory meanwhile."""
        ranks = self.ready(self.ranks(2, GIB // 2, "endless", group))
        held = self.now()[0]
        ranks[victim].kill()
        ranks[victim].wait(30)
        status, out, err = self.finish(ranks[1 - victim])
        self.assertEqual(status, 3, out + err)
        self.assertIn(f"rank {victim}", out)
        return held

    def kills_give_back_the_memory(self, kind):
        # A put to a rank that was killed never completes, and the daemon holds what it reads from until drain_ms are over.
        self.start(kind, drain_ms=500)
        self.kill_in_mid_traffic(0, "before")
        for node in self.daemons:  # from here on they have what they keep: contexts, and what engines need once
            wait_until(lambda: node.show("sessions") == [], f"{node.name} reaps its session")
        free, resources = self.now()
        for victim in range(2):
            held = self.kill_in_mid_traffic(victim, f"victim{victim}")
            self.assertGreaterEqual(sum(free) - sum(held), GIB)
            self.wait_for(free, resources)
            print(f"{kind}: free before {free}, held {held}, after {self.now()[0]}")
        self.verified(self.ranks(2, MIB, "put", "after"), 3)  # the engines survived

    def test_kill_in_mid_traffic_over_emulated(self):
        self.kills_give_back_the_memory("emulated")

    def test_kill_in_mid_traffic_over_tcp(self):
        self.kills_give_back_the_memory("tcp")


if __name__ == "__main__":
    GPUS = gpus_or_skip()
    unittest.main(verbosity=2)
