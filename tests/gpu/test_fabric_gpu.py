"""GPU memory over the transports: real daemons on one host play two or four nodes, with a rank and a GPU each, over the emulated
fabric and over TCP. Where there are fewer GPUs, ranks share them: at the same time under MPS, in time slices without it and where
ranks are killed. Skipped, with the reason, where there is none."""
import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "integration"), str(HERE)]  # the latter in a bundle, where the tests lie in one folder
from cluster import ClusterTest, free_bytes, gpus_or_skip, program, wait_until  # noqa: E402
from mps import RanksAtOnce  # noqa: E402

MIB, GIB = 1 << 20, 1 << 30


class FabricCase(ClusterTest):
    KIND = None

    def start(self, nodes=2, **options):
        return self.start_nodes(nodes, {"transport": {"kind": self.KIND, "gpu_memory": True}, f"transport.{self.KIND}": options})

    def ranks(self, size, mode, group):
        return [self.spawn(program("fabric_rank"), node.socket, group, len(self.daemons), rank, rank % GPUS, size, mode)
                for rank, node in enumerate(self.daemons)]

    def verified(self, size=8 * MIB, mode="check", group="check"):
        """Puts of up to half of `size`. The host makes and compares `size` random bytes for each round: most of the time."""
        for rank in self.ranks(size, mode, group):
            status, out, err = self.finish(rank)
            self.assertEqual(status, 0, out + err)
            self.assertIn("verified", out)
            print(out.strip())

    def start_endless(self, group):
        ranks = self.ranks(2 * GIB, "endless", group)
        for rank in ranks:
            self.assertEqual(rank.stdout.readline(), "ready\n")
        return ranks


class AnyTransport:
    """What holds for every transport."""

    def test_every_size_and_offset(self):
        self.start()
        self.verified(mode="flood")
        for node in self.daemons:
            wait_until(lambda: node.show("regions") == [], "the daemons let go of every region")


class KillsOverAnyTransport:
    def test_kill_of_a_rank_gives_back_its_memory(self):
        nodes = self.start()
        self.verified(MIB, group="before")  # from here on the daemons have what they keep: their contexts
        used = sorted({r % GPUS for r in range(2)})
        free, resources = [free_bytes(d) for d in used], [node.resources() for node in nodes]
        for victim in range(2):
            ranks = self.start_endless(f"victim{victim}")
            held = [free_bytes(d) for d in used]
            self.assertGreaterEqual(sum(free) - sum(held), 8 * GIB)
            ranks[victim].kill()
            ranks[victim].wait(30)
            status, out, err = self.finish(ranks[1 - victim])
            self.assertEqual(status, 3, out + err)
            self.assertIn(f"rank {victim}", out)
            seen = []
            try:
                wait_until(lambda: seen.append([free_bytes(d) for d in used]) or seen[-1] == free, "free memory")
            except AssertionError:
                self.fail(f"free memory is {seen[-1]}, it was {free}")
            print(f"free before {free}, held {held}, after {seen[-1]}")
        self.verified(MIB, group="after")
        for node, before in zip(nodes, resources):
            wait_until(lambda: node.resources() <= before, f"the resources of {node.name} are {before} again")

    def test_restart_of_a_daemon(self):
        nodes = self.start()
        ranks = self.start_endless("first")
        nodes[1].kill()
        for rank in ranks:
            status, out, err = self.finish(rank)
            self.assertEqual(status, 3, out + err)
            self.assertIn("UNAVAILABLE", out)
        nodes[1].start()
        for node in nodes:
            self.wait_for_peers(node, 1)
        self.verified(MIB, group="second")


class EmulatedKillsGpuTest(KillsOverAnyTransport, FabricCase):
    KIND = "emulated"


class TcpKillsGpuTest(KillsOverAnyTransport, FabricCase):
    KIND = "tcp"


class EmulatedGpuTest(RanksAtOnce, AnyTransport, FabricCase):
    KIND = "emulated"

    def test_puts_of_64_mib(self):
        self.start()
        self.verified(128 * MIB, "large")

    def test_at_a_rate_and_latency(self):
        self.start(bandwidth_gbytes=50.0, latency_us=5)
        self.verified()

    def test_with_losses_duplicates_and_overtaking(self):
        self.start(drop=0.01, duplicate=0.02, reorder=0.05)
        self.verified()

    def test_four_nodes(self):
        self.start(nodes=4)
        self.verified()


class TcpGpuTest(RanksAtOnce, AnyTransport, FabricCase):
    KIND = "tcp"


class Figures(RanksAtOnce, FabricCase):
    """Latency and bandwidth by size, printed: ctest does not run it, for on a GPU that others use too they mean nothing."""

    def test_figures(self):
        for kind, options in (("emulated", {"bandwidth_gbytes": 50.0, "latency_us": 10}), ("emulated", {}), ("tcp", {})):
            with self.subTest(kind=kind, **options):
                self.KIND = kind
                self.start(**options)
                outcomes = [self.finish(rank, 120) for rank in self.ranks(64 * MIB, "bench", "bench")]
                for status, out, err in outcomes:
                    self.assertEqual(status, 0, out + err)
                print(kind, options or "no limit, no latency", outcomes[0][1], sep="\n")
                for node in self.daemons:
                    self.assertEqual(node.stop(), 0)
                self.daemons = []


if __name__ == "__main__":
    GPUS = gpus_or_skip()
    unittest.main(verbosity=2)
