"""Processes that die in the middle: everybody else gets an error that names the dead, within the deadline; what the dead
held is given back; what comes after works."""
import signal
import time
import unittest

from cluster import PATIENCE, ClusterTest, wait_until

# Long enough that nobody finishes before the kill; the deadline of every wait is far above what the test allows.
ENDLESS = ["gemm_ar", "--m", "256", "--n", "128", "--k", "128", "--iterations", "100000", "--deadline", "300"]


class Faults(ClusterTest):
    def start_endless(self, group="test"):
        ranks = [self.bench(r, 4, self.daemons[r // 2], *ENDLESS, group=group) for r in range(4)]
        wait_until(lambda: sum(c["puts_total"] for c in self.daemons[0].show("channels")) > 50, "puts between the nodes")
        return ranks

    def expect_errors(self, ranks, *names):
        for process in ranks:
            status, out, err = self.finish(process)
            self.assertEqual(status, 1, f"{out}{err}")
            self.assertTrue(any(name in err for name in names), f"none of {names} in: {err}")

    def test_killed_rank(self):
        self.start_nodes(2)
        # One full run first, so that what stays for good (gRPC's and malloc's pools) is there in the level before.
        self.bench_all("ag_gemm", "--m", "64", "--n", "64", "--k", "64", "--iterations", "1")
        wait_until(lambda: not self.daemons[1].show("sessions"), "sessions are gone")
        before = [d.resources() for d in self.daemons]
        ranks = self.start_endless()
        ranks[3].send_signal(signal.SIGKILL)
        ranks[3].communicate()
        self.expect_errors(ranks[:3], "rank 3")
        for daemon in self.daemons:
            wait_until(lambda d=daemon: not d.show("sessions"), "sessions are gone")
        for daemon, level in zip(self.daemons, before):
            wait_until(lambda d=daemon, l=level: all(now <= then for now, then in zip(d.resources(), l)),
                       f"{daemon.name}: fds, threads and mappings back at {level}, now {daemon.resources()}")
        # The name is free again at once, and the daemons are as good as new.
        self.bench_all("ag_gemm", "--m", "64", "--n", "64", "--k", "64", "--iterations", "1")

    def test_killed_daemon_and_its_restart(self):
        self.start_nodes(2)
        ranks = self.start_endless()
        self.daemons[1].kill()
        killed = time.monotonic()
        self.expect_errors(ranks[2:], "node1")   # its own clients: the socket closed
        self.expect_errors(ranks[:2], "node1", "rank 2", "rank 3")
        self.assertLess(time.monotonic() - killed, PATIENCE)
        self.assertEqual(self.daemons[0].mkctl("status", check=False).returncode, 1)  # unhealthy: a peer is gone

        self.daemons[1].start()
        for daemon in self.daemons:
            self.wait_for_peers(daemon, 1)
        self.bench_all("gemm_rs", "--m", "64", "--n", "64", "--k", "64", "--iterations", "1")

    def test_other_groups_go_on_when_one_fails(self):
        self.start_nodes(2)
        doomed = self.start_endless("doomed")
        healthy = [self.bench(r, 4, self.daemons[r // 2], "ag_gemm", "--m", "128", "--n", "64", "--k", "64",
                              "--iterations", "30", group="healthy") for r in range(4)]
        doomed[0].send_signal(signal.SIGKILL)
        doomed[0].communicate()
        self.expect_errors(doomed[1:], "rank 0")
        for process in healthy:
            status, out, err = self.finish(process, 4 * PATIENCE)
            self.assertEqual(status, 0, out + err)

    def test_daemon_stopped_in_the_middle_says_so(self):
        self.start_nodes(2, {"limits": {"drain_ms": 500}})
        ranks = self.start_endless()
        self.assertEqual(self.daemons[0].stop(), 0)
        self.expect_errors(ranks, "node0", "stopping", "rank 0", "rank 1")

    def test_stopped_rank_is_named_by_the_deadline(self):
        self.start_nodes(2)
        arguments = [*ENDLESS[:-1], "3", "--join-timeout", "5"]  # waits inside operations, and barriers between them
        ranks = [self.bench(r, 4, self.daemons[r // 2], *arguments) for r in range(4)]
        wait_until(lambda: sum(c["puts_total"] for c in self.daemons[0].show("channels")) > 50, "puts between the nodes")
        ranks[2].send_signal(signal.SIGSTOP)
        try:
            self.expect_errors([ranks[0], ranks[1], ranks[3]], "rank")
        finally:
            ranks[2].send_signal(signal.SIGCONT)
        self.expect_errors([ranks[2]], "rank")


if __name__ == "__main__":
    unittest.main()
