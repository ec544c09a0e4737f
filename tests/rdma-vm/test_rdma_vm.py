"""The verbs transport over the kernel's soft-RoCE: two emulated machines, a daemon and two rails each, one rank on either.

    test_rdma_vm.py --folder FOLDER [--rounds N] [TEST...]

FOLDER keeps the kernel from one run to the next. A round boots the machines anew and runs every test."""
import argparse
import concurrent.futures
import contextlib
import itertools
import pathlib
import sys
import time
import unittest

from image import Unavailable, build
from machine import Machine
from node import Node

from cluster import PATIENCE, wait_until
from test_operations import SMALL

# Long enough that nobody finishes before the kill; the deadline of every wait is far above what the test allows.
ENDLESS = ["gemm_ar", "--m", "64", "--n", "32", "--k", "32", "--iterations", "100000", "--deadline", "300"]
TINY = ["gemm_ar", "--m", "64", "--n", "32", "--k", "32"]


class Cluster:
    """Both machines and their daemons; what a test kills comes up again for the next one."""

    def __init__(self, image, folder):
        self.machines = [Machine(number, image, folder) for number in (1, 2)]
        self.nodes = [Node(*pair) for pair in itertools.permutations(self.machines)]

    def up(self):
        booting = [machine for machine in self.machines if not machine.runs()]
        for machine in booting:
            machine.boot()
        for machine in booting:
            machine.wait_for_shell()
        starting = [node for node in self.nodes if node.machine in booting or not node.runs()]
        for node in starting:
            node.start()
        for node in starting:
            node.wait_until_it_answers()
        for node in self.nodes:
            wait_until(lambda n=node: [peer["state"] for peer in n.show("peers")] == ["alive"], f"{node.name} sees its peer")

    def down(self):
        for machine in self.machines:
            machine.kill()


class SoftRoce(unittest.TestCase):
    cluster = None
    dtypes = ()

    def setUp(self):
        self.cluster.up()
        self.machines, self.nodes = self.cluster.machines, self.cluster.nodes

    def run(self, result=None):
        """With what the daemons said where a test has failed."""
        before = len(result.failures) + len(result.errors)
        super().run(result)
        if len(result.failures) + len(result.errors) > before:
            for node in self.cluster.nodes:
                with contextlib.suppress(OSError, AssertionError):
                    print(f"-- {node.name}, its log and its threads:\n{node.log()}{node.threads()}", file=sys.stderr)

    def start_ranks(self, *arguments, group):
        return [node.bench(rank, 2, *arguments, group=group) for rank, node in enumerate(self.nodes)]

    def finish_operation(self, ranks):
        """Every element of every iteration is right."""
        outputs = [rank.finish(4 * PATIENCE) for rank in ranks]
        for rank, (status, output) in enumerate(outputs):
            self.assertEqual(status, 0, f"rank {rank}:\n{output}")
        self.assertIn("verified", outputs[0][1])

    def test_1_what_operators_see(self):
        for node in self.nodes:
            devices = {device["device"]: device for device in node.show("devices")}
            self.assertEqual(sorted(devices), ["rxe0", "rxe1"])
            for rail in (0, 1):
                device = devices[f"rxe{rail}"]
                self.assertEqual((device["state"], device["link_layer"], device["driver"], device["interface"]),
                                 ("ACTIVE", "Ethernet", "rxe", f"rail{rail}"))
                # Not the link-local one, which comes first.
                self.assertEqual((device["gid"], device["gid_type"]),
                                 (f"::ffff:{node.machine.address(f'rail{rail}')}", "RoCE v2"))
                self.assertEqual((device["mtu"], device["dma_buf"]), (1024, "no"))
            rows = [line.split() for line in node.mkctl("topo").splitlines()]
            self.assertEqual([row[:2] for row in rows if row and row[0].isdigit()], [["0", "rxe0:1"], ["1", "rxe1:1"]])
            doctor = node.doctor()
            self.assertEqual([finding for finding in doctor["findings"] if finding["severity"] == "error"], [])
            self.assertIn("devices", doctor["checked"])
            self.assertIn("gids", doctor["checked"])

    def test_2_operations(self):
        for op, shape in SMALL.items():
            for dtype in self.dtypes:
                with self.subTest(op=op, dtype=dtype):
                    before = [node.sent_packets(0) + node.sent_packets(1) for node in self.nodes]
                    self.finish_operation(self.start_ranks(op, *shape, "--dtype", dtype, "--iterations", "1", group="test"))
                    after = [node.sent_packets(0) + node.sent_packets(1) for node in self.nodes]
                    self.assertTrue(all(a > b for a, b in zip(after, before)), "it was not the soft-RoCE devices that carried it")

    def completed(self):
        """[node][rail]; asked at the same time."""
        with concurrent.futures.ThreadPoolExecutor() as threads:
            return list(threads.map(Node.completed, self.nodes))

    def wait_for_puts(self):
        wait_until(lambda: min(map(min, self.completed())) > 20, "puts over both rails, both ways")

    def start_endless(self):
        ranks = self.start_ranks(*ENDLESS, group="endless")
        self.wait_for_puts()
        return ranks

    def expect_error(self, rank, *names):
        status, output = rank.finish(2 * PATIENCE)
        self.assertEqual(status, 1, output)
        for name in names:
            self.assertIn(name, output)

    def test_3_killed_daemon(self):
        ranks = self.start_endless()
        self.nodes[1].kill()
        self.expect_error(ranks[1], "machine2")  # its own client: the socket closed
        self.expect_error(ranks[0], "machine1", "machine2")
        self.cluster.up()
        self.finish_operation(self.start_ranks(*TINY, "--iterations", "1", group="test"))

    def test_4_killed_machine(self):
        ranks = self.start_endless()
        self.machines[1].kill()
        self.expect_error(ranks[0], "machine1", "machine2")

    def test_5_daemons_stop(self):
        for node in self.nodes:
            node.stop()
            self.assertIn("stopped", node.log().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--all-types", action="store_true", help="operations in fp16 too")
    parser.add_argument("tests", nargs="*", metavar="TEST", help="parts of names of tests; all when none is given")
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        image = build(folder)
    except Unavailable as why:
        print(f"SKIPPED: {why}")
        return 77
    SoftRoce.dtypes = ("bf16", "f16") if options.all_types else ("bf16",)
    for number in range(1, options.rounds + 1):
        started = time.monotonic()
        SoftRoce.cluster = Cluster(image, folder)
        try:
            suite = unittest.defaultTestLoader
            suite.testNamePatterns = [f"*{name}*" for name in options.tests] or None
            result = unittest.TextTestRunner(verbosity=2).run(suite.loadTestsFromTestCase(SoftRoce))
        finally:
            SoftRoce.cluster.down()
        print(f"round {number} of {options.rounds}: {time.monotonic() - started:.0f} s", file=sys.stderr)
        if not result.wasSuccessful():
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
