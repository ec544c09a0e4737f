"""The verbs transport over the kernel's soft-RoCE: two emulated machines, a daemon and two rails each, one rank on either.

    test_rdma_vm.py --folder FOLDER [--rounds N] [--pulls N] [--thorough] [TEST...]

FOLDER keeps the kernel from one run to the next. A round boots the machines anew and runs every test."""
import argparse
import concurrent.futures
import contextlib
import itertools
import pathlib
import statistics
import sys
import time
import unittest

from image import Unavailable, build
from machine import Machine
from node import Node

from cluster import BIN, PATIENCE, wait_until
from test_operations import COLLECTIVE

# Long enough that nobody finishes before the kill; the deadline of every wait is far above what the test allows.
ENDLESS = ["gemm_ar", "--m", "64", "--n", "32", "--k", "32", "--iterations", "100000", "--deadline", "300"]
# One thread: those that wait for the other machine take the processors that it is emulated on.
TINY = ["gemm_ar", "--m", "64", "--n", "32", "--k", "32", "--threads", "1"]
# Of the same length, a machine each.
SUITE_IN_PARTS = ["-tc=*many cuts*", "-tce=*wraps*,*many cuts*"]
# Some ten seconds of them for a pull, or the operation ends before it is noticed.
ITERATIONS_A_PULL, MAX_ITERATIONS = 60, 2000


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
    pulls = 2
    thorough = False

    def setUp(self):
        self.cluster.up()
        self.machines, self.nodes = self.cluster.machines, self.cluster.nodes

    def run(self, result=None):
        """With how long it took, and what the daemons said where a test has failed."""
        before, started = len(result.failures) + len(result.errors), time.monotonic()
        super().run(result)
        print(f"{self.id().rpartition('.')[2]}: {time.monotonic() - started:.0f} s", file=sys.stderr)
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
        for op, shape in COLLECTIVE.items():
            for dtype in ("bf16", "f16") if self.thorough else ("bf16",):
                with self.subTest(op=op, dtype=dtype):
                    before = [node.sent_packets(0) + node.sent_packets(1) for node in self.nodes]
                    self.finish_operation(self.start_ranks(op, *shape, "--dtype", dtype, "--iterations", "1", group="test"))
                    after = [node.sent_packets(0) + node.sent_packets(1) for node in self.nodes]
                    self.assertTrue(all(a > b for a, b in zip(after, before)), "it was not the soft-RoCE devices that carried it")

    def all_packets(self):
        return [node.sent_packets(rail) for node in self.nodes for rail in (0, 1)]

    def wait_for_puts(self, busy=lambda: True):
        before = self.all_packets()
        flow = lambda: all(a > b + 50 for a, b in zip(self.all_packets(), before))
        wait_until(lambda: flow() or not busy(), "puts over both rails, both ways")

    def moves(self, rail):
        """Of both ends, asked at the same time: a command takes a second in a busy machine."""
        with concurrent.futures.ThreadPoolExecutor() as threads:
            return list(threads.map(lambda node: node.moves(rail), self.nodes))

    def wait_for_move(self, rail, device, before, busy):
        """Until both ends have moved the puts of the rail to the device; False when the operation has ended first."""
        moved = lambda: all(device in moves[seen:] for moves, seen in zip(self.moves(rail), before))
        wait_until(lambda: moved() or not busy(), f"puts of rail {rail} go over {device}")
        return busy()

    def pull(self, number):
        """Takes one rail from one machine; returns it, and what gives it back. In turn as when a switch dies, which no
        device tells, and by taking the interface down, which this end is told and the other is not."""
        machine, rail = self.machines[number // 4 % 2], number // 2 % 2
        if number % 2 == 0:
            machine.set_link(f"rail{rail}", False)
            return rail, lambda: machine.set_link(f"rail{rail}", True)
        machine.run(f"ip link set rail{rail} down")
        return rail, lambda: machine.run(f"ip link set rail{rail} up")

    def test_3_pulled_rails(self):
        """Each time both ends must move to the other rail, and back when the cable is in again."""
        pulls, chains, verified, seconds = 0, 0, 0, []
        while pulls < self.pulls:
            chains += 1
            self.assertLess(chains, 10 + self.pulls, "chains of operations end before both ends have noticed a pull")
            iterations = min(ITERATIONS_A_PULL * (1 + self.pulls - pulls), MAX_ITERATIONS)
            ranks = self.start_ranks(*TINY, "--iterations", iterations, group="pulled")
            busy = lambda: all(rank.runs() for rank in ranks)
            self.wait_for_puts(busy)
            while pulls < self.pulls and busy():
                before = [len(moves) for moves in self.moves(pulls // 2 % 2)]
                rail, restore = self.pull(pulls)
                pulled = time.monotonic()
                if self.wait_for_move(rail, f"rxe{1 - rail}", before, busy):
                    seconds.append(time.monotonic() - pulled)
                    pulls += 1
                restore()
                self.wait_for_move(rail, f"rxe{rail}", before, busy)
            self.finish_operation(ranks)
            verified += iterations
        print(f"{pulls} pulls, {verified} operations verified, median {statistics.median(seconds):.1f} s until both ends "
              f"used the other rail, at most {max(seconds):.1f}", file=sys.stderr)

    def start_endless(self):
        ranks = self.start_ranks(*ENDLESS, group="endless")
        self.wait_for_puts()
        return ranks

    def expect_error(self, rank, *names):
        status, output = rank.finish(2 * PATIENCE)
        self.assertEqual(status, 1, output)
        for name in names:
            self.assertIn(name, output)
        print(output, file=sys.stderr)

    def test_4_killed_daemon(self):
        ranks = self.start_endless()
        self.nodes[1].kill()
        self.expect_error(ranks[1], "machine2")  # its own client: the socket closed
        self.expect_error(ranks[0], "machine2")
        self.cluster.up()
        self.finish_operation(self.start_ranks(*TINY, "--iterations", "1", group="test"))

    def test_5_daemons_stop_and_conformance_suite(self):
        for node in self.nodes:  # their rails would go up and down with the suite's device, which is work for them
            node.stop()
        parts = ["-tce=*wraps*"] * 2 if self.thorough else SUITE_IN_PARTS
        suites = [machine.spawn(BIN / "conformance_verbs_device", part, MKERNEL_RDMA_DEVICE="rxe0")
                  for machine, part in zip(self.machines, parts)]
        for suite in suites:
            status, output = suite.finish(1800)
            self.assertEqual(status, 0, output)
            self.assertIn("SUCCESS", output)
            self.assertRegex(output, "test cases: +[1-9]")
            print(output.splitlines()[-3:], file=sys.stderr)

    def test_6_fabric_benchmark(self):
        if not self.thorough:
            self.skipTest("--thorough")
        receiver, sender = self.machines[1], self.machines[0]
        command = [BIN / "mkbench", "fabric", "--transport", "verbs", "--device", "rxe0"]
        served = receiver.spawn(*command, "--serve", 7700)
        output = sender.run(*command, "--connect", f"{receiver.address('control')}:7700", "--sizes", 64, "--sizes", 65536, "--seconds", 1)
        self.assertEqual(output.count(" verified "), 2, output)
        print(output, file=sys.stderr)
        self.assertEqual(served.finish(PATIENCE)[0], 0)

    def test_7_killed_machine(self):
        """The last one: it would have to boot again."""
        ranks = self.start_endless()
        self.machines[1].kill()
        self.expect_error(ranks[0], "machine1", "machine2")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--pulls", type=int, default=SoftRoce.pulls, help="of a rail, in each round")
    parser.add_argument("--thorough", action="store_true", help="operations in fp16 too, the whole conformance suite in both machines, the benchmark")
    parser.add_argument("tests", nargs="*", metavar="TEST", help="parts of names of tests; all when none is given")
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        image = build(folder)
    except Unavailable as why:
        print(f"SKIPPED: {why}")
        return 77
    SoftRoce.pulls = options.pulls
    SoftRoce.thorough = options.thorough
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
