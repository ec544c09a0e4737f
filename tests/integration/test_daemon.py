"""mkerneld and mkctl as an operator meets them: mistakes in the configuration, taken ports and sockets, signals, exit codes."""
import json
import pathlib
import signal
import socket
import subprocess
import unittest

from cluster import BIN, ClusterTest, Daemon, free_ports, wait_until

TABLES = ("status", "sessions", "users", "peers", "groups", "regions", "channels", "devices", "topo", "config")


class Mkerneld(ClusterTest):
    def check(self, text):
        path = self.folder / "mkerneld.toml"
        path.write_text(text)
        return subprocess.run([BIN / "mkerneld", "--config", path, "--check"], capture_output=True, text=True, timeout=60)

    def test_mistakes_are_named_with_file_line_and_key(self):
        run = self.check('[node]\nname = "a"\n[proxy]\nthreads = 99\nspeling = 1\n[limits]\ndrain_ms = "soon"\n')
        self.assertNotEqual(run.returncode, 0)
        for expected in ("mkerneld.toml:4", "proxy.threads", "99", "mkerneld.toml:5", "speling", "mkerneld.toml:7",
                         "limits.drain_ms"):
            self.assertIn(expected, run.stderr)

    def test_text_that_is_no_toml(self):
        run = self.check("[node\nname = ")
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("mkerneld.toml:1", run.stderr)

    def test_missing_file(self):
        run = subprocess.run([BIN / "mkerneld", "--config", self.folder / "none.toml"], capture_output=True, text=True,
                             timeout=60)
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("none.toml", run.stderr)

    def start_must_fail(self, daemon, *texts):
        run = subprocess.run([BIN / "mkerneld", "--config", daemon.config], capture_output=True, text=True, timeout=60)
        self.assertNotEqual(run.returncode, 0)
        for text in texts:
            self.assertIn(text, run.stderr)

    def test_occupied_port(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            self.start_must_fail(Daemon(self.folder, "late", port, ["127.0.0.1:1"]), str(port))

    def test_occupied_socket_names_the_holder(self):
        (node,) = self.start_nodes(1)
        late = Daemon(self.folder, node.name, free_ports(1)[0], [])
        self.start_must_fail(late, str(node.folder), "sock is taken by pid " + str(node.process.pid))

    def test_gpu_memory_without_driver_or_module_says_what_is_missing(self):
        if pathlib.Path("/dev/nvidia0").exists():
            self.skipTest("this machine has a GPU")
        for kind in ("emulated", "tcp"):
            with self.subTest(kind=kind):
                asked = {"transport": {"kind": kind, "gpu_memory": True}}
                self.start_must_fail(Daemon(self.folder, "node-" + kind, 0, [], asked), "transport.gpu_memory = true")

    def test_stale_socket_of_a_killed_daemon_is_taken_over(self):
        (node,) = self.start_nodes(1)
        node.kill()
        self.assertTrue(node.socket.exists())
        node.start()

    def test_stops_clean(self):
        (node,) = self.start_nodes(1)
        self.assertEqual(node.stop(), 0)
        self.assertEqual([p for p in node.folder.iterdir() if p.is_socket()], [])

    def test_reload(self):
        (node,) = self.start_nodes(1)
        node.sections.setdefault("log", {})["level"] = "debug"
        node.sections["proxy"] = {"threads": 2}
        node.write_config(node.sections)
        node.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "log.level" in node.tail() and "proxy.threads" in node.tail(), "the reload in the log")
        config = node.mkctl("config").stdout
        self.assertIn('"debug"', config)


class Mkctl(ClusterTest):
    def test_tables_and_json(self):
        node0, _ = self.start_nodes(2)
        for table in TABLES:
            with self.subTest(table=table):
                out = node0.mkctl(table).stdout
                self.assertIn("node0", out.splitlines()[0])  # says which daemon it reached
                if table != "config":
                    json.loads(node0.mkctl(table, "-o", "json").stdout)

    def doctor(self, node, *arguments):
        """(exit status, report) of `mkctl doctor --json`."""
        run = node.mkctl("doctor", "--json", *arguments, check=False)
        return run.returncode, json.loads(run.stdout)

    def test_doctor_with_a_daemon(self):
        node0, node1 = self.start_nodes(2)
        status, report = self.doctor(node0)
        self.assertTrue(report["daemon_reached"])
        self.assertEqual(report["node"], "node0")
        self.assertEqual([f for f in report["findings"] if f["severity"] == "error"], [])
        self.assertEqual(status, 0)
        for finding in report["findings"]:
            self.assertTrue(finding["what"] and finding["why"] and finding["todo"], finding)
        # Both daemons run on this machine, and node0's is the one that was asked.
        (two,) = [f for f in report["findings"] if f["check"] == "daemons"]
        for pid in (node0.process.pid, node1.process.pid):
            self.assertIn(f"pid {pid}: ", two["what"])
        self.assertIn(f"pid {node0.process.pid} answered here", two["what"])
        self.assertIn("# mkerneld on node0", node0.mkctl("doctor").stdout.splitlines()[0])

        node1.kill()
        wait_until(lambda: self.doctor(node0)[0] == 1, "a dead peer is an error")
        (sick,) = [f for f in self.doctor(node0)[1]["findings"] if f["severity"] == "error"]
        self.assertIn("node1", sick["what"])

    def test_doctor_looks_at_the_other_end(self):
        node0, node1 = self.start_nodes(2)
        wait_until(lambda: node0.show("peers")[0]["clock_offset_ms"] is not None, "both clocks are compared")
        (peer,) = node0.show("peers")
        # One machine, one clock: what is seen of it is no more than the round trip explains.
        self.assertLessEqual(abs(peer["clock_offset_ms"]), peer["round_trip_ms"] / 2 + 0.001)
        self.assertEqual(peer["transport"], "1 x tcp")
        wait_until(lambda: all(rail["connected"] for rail in node0.show("peers")[0]["rails"]), "the rail is connected")
        self.assertEqual([f for f in self.doctor(node0)[1]["findings"] if f["check"] in ("rails", "version")], [])

        node1.stop()
        node1.sections["proxy"] = {"threads": 2}
        node1.write_config(node1.sections)
        node1.start()
        for node, other, there, here in (node0, node1, 2, 1), (node1, node0, 1, 2):
            found = lambda: [f for f in self.doctor(node)[1]["findings"] if f["check"] == "rails"]
            wait_until(found, f"{node.name} finds the other's rails")
            (finding,) = found()
            self.assertEqual(finding["severity"], "error")
            self.assertEqual(finding["what"], f"peer {other.name} has rails {there} x tcp, this node {here} x tcp")
            self.assertIn("proxy.threads", finding["todo"])

    def test_doctor_without_a_daemon(self):
        (node,) = self.start_nodes(1)
        node.stop()
        status, report = self.doctor(node)
        self.assertEqual(status, 1)
        self.assertFalse(report["daemon_reached"])
        (finding,) = [f for f in report["findings"] if f["check"] == "daemon"]
        self.assertIn(str(node.control), finding["what"])
        self.assertIn("devices", report["checked"])

    def test_exit_codes(self):
        node0, node1 = self.start_nodes(2)
        self.assertEqual(node0.mkctl("status").returncode, 0)
        self.assertEqual(node0.mkctl("nonsense", check=False).returncode, 2)
        node1.kill()
        wait_until(lambda: node0.mkctl("status", check=False).returncode == 1, "unhealthy: a peer is gone")
        node0.stop()
        run = node0.mkctl("status", check=False)
        self.assertEqual(run.returncode, 3)
        self.assertIn(str(node0.control), run.stderr)


if __name__ == "__main__":
    unittest.main()
