"""Two daemons in two network namespaces joined by a veth pair: what loopback hides (addresses, routes, a link that goes
down) is there. Skips without the right to make namespaces."""
import os
import subprocess
import sys
import unittest

from cluster import BIN, ClusterTest, Daemon, wait_until

SUFFIX = str(os.getpid())
NAMESPACES = [f"mk{SUFFIX}a", f"mk{SUFFIX}b"]
ADDRESSES = ["10.87.65.1", "10.87.65.2"]


def ip(*arguments):
    return subprocess.run(["ip", *arguments], capture_output=True, text=True)


class Namespaces(ClusterTest):
    @classmethod
    def setUpClass(cls):
        made = ip("netns", "add", NAMESPACES[0])
        if made.returncode != 0:
            raise unittest.SkipTest(f"cannot make a network namespace: {made.stderr.strip()}")
        ip("netns", "add", NAMESPACES[1])
        ip("link", "add", "mk0", "netns", NAMESPACES[0], "type", "veth", "peer", "name", "mk1", "netns", NAMESPACES[1])
        for i, name in enumerate(NAMESPACES):
            for command in (["addr", "add", ADDRESSES[i] + "/24", "dev", f"mk{i}"], ["link", "set", f"mk{i}", "up"],
                            ["link", "set", "lo", "up"]):
                done = ip("-n", name, *command)
                if done.returncode != 0:
                    raise AssertionError(f"ip {command}: {done.stderr}")

    @classmethod
    def tearDownClass(cls):
        for name in NAMESPACES:
            ip("netns", "del", name)

    def start_in_namespaces(self, **peers):
        for i, name in enumerate(NAMESPACES):
            self.daemons.append(Daemon(
                self.folder, f"node{i}", 7600, [ADDRESSES[1 - i] + ":7600"], {"peers": peers},
                prefix=["ip", "netns", "exec", name], host=ADDRESSES[i]))
        for daemon in self.daemons:
            daemon.start()
        for daemon in self.daemons:
            self.wait_for_peers(daemon, 1)

    def test_operations_across_namespaces(self):
        self.start_in_namespaces(insecure=True)
        out = self.bench_all("ag_gemm", "--m", "300", "--n", "64", "--k", "128", "--iterations", "3")
        self.assertIn("verified", out)
        out = self.bench_all("ring_attention", "--sequence", "101", "--heads", "2", "--kv-heads", "2", "--head-dim",
                             "32", "--iterations", "2")
        self.assertIn("verified", out)

    def test_plain_text_outside_loopback_must_be_asked_for(self):
        daemon = Daemon(self.folder, "open", 7600, [], host=ADDRESSES[0])
        run = subprocess.run(["ip", "netns", "exec", NAMESPACES[0], *self.command(daemon)], capture_output=True,
                             text=True, timeout=60)
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("insecure", run.stderr)

    def test_clear_payload_outside_loopback_must_be_asked_for_too(self):
        daemon = Daemon(self.folder, "clear", 7600, [], {"peers": {"insecure": True}, "transport.tcp": {"insecure": False}},
                        host=ADDRESSES[0])
        run = subprocess.run(self.command(daemon), capture_output=True, text=True, timeout=60)
        self.assertNotEqual(run.returncode, 0)
        self.assertIn(f'transport.tcp.bind = "{ADDRESSES[0]}"', run.stderr)
        self.assertIn("transport.tcp.insecure = true", run.stderr)

    @staticmethod
    def command(daemon):
        return [BIN / "mkerneld", "--config", daemon.config, "--check"]

    def test_link_down_longer_than_the_peer_timeout_fails_the_group(self):
        self.start_in_namespaces(insecure=True)
        ranks = [self.bench(r, 2, self.daemons[r], "gemm_ar", "--m", "256", "--n", "128", "--k", "128", "--iterations",
                            "100000", "--deadline", "300") for r in range(2)]
        wait_until(lambda: sum(c["puts_total"] for c in self.daemons[0].show("channels")) > 50, "puts between the nodes")
        ip("-n", NAMESPACES[0], "link", "set", "mk0", "down")
        try:
            for rank, process in enumerate(ranks):
                status, out, err = self.finish(process)
                self.assertEqual(status, 1, out + err)
                self.assertIn(f"node{1 - rank}", err)
        finally:
            ip("-n", NAMESPACES[0], "link", "set", "mk0", "up")


if __name__ == "__main__":
    result = unittest.main(exit=False).result
    # 77: ctest counts it as skipped.
    sys.exit(1 if not result.wasSuccessful() else 77 if result.skipped and not result.testsRun else 0)
