"""`mkbench tenants`: every attacker, briefly, beside a bystander whose payloads are verified. What it measures is recorded elsewhere;
here each attack must run, and the bystander must go on beside it."""
import json
import os
import pwd
import subprocess
import unittest

from cluster import BIN, PATIENCE, ClusterTest, wait_until

ATTACKS = ("rival", "tiny_puts", "join_flood", "leave_groups", "leave_put", "kill", "regions", "sessions", "silent",
           "linger_packet", "linger_regions", "unread", "holes", "locked", "busy_group")


class Tenants(ClusterTest):
    def run_tenants(self, *arguments, seconds=10 * PATIENCE):
        node0, node1 = self.daemons
        process = self.spawn(BIN / "mkbench", "tenants", "--daemon", node0.socket, "--peer-daemon", node1.socket, *arguments)
        return self.finish(process, seconds)

    def test_every_attack_runs_and_the_bystander_goes_on(self):
        node0, _ = self.start_nodes(2, {"node": {"socket_mode": "0666"}})
        self.folder.chmod(0o755)
        file = self.folder / "tenants.json"
        options = ["--turns", "1", "--settle", "0.2", "--attack-bytes", str(8 << 20), "--ranks", "16", "--connections", "200",
                   "--json", file]
        attacker = os.geteuid()
        if attacker == 0:  # the attacker is another user then
            attacker = pwd.getpwnam("nobody").pw_uid
            options += ["--uid", attacker]

        def measure(*more):
            status, out, err = self.run_tenants(*options, *more)
            self.assertEqual(status, 0, out + err)
            return json.loads(file.read_text())["tenants"]["rows"], out

        rows, out = measure("--seconds", 0.2)
        self.assertEqual([row["attack"] for row in rows], list(ATTACKS))
        for row in rows:
            with self.subTest(attack=row["attack"]):
                self.assertEqual(row["of_fair_share"], row["with"]["gbytes_per_second"] / rows[0]["with"]["gbytes_per_second"])
                if row["attack_rounds"] == 0:  # on a busy machine none has ended yet
                    (row,), _ = measure("--seconds", 10, "--attack", row["attack"])
                self.assertTrue(row["verified"], row)
                self.assertGreater(row["attack_rounds"], 0, row)
                self.assertEqual(row["attacker_uid"], attacker)
                for side in ("without", "with"):
                    figures = row[side]
                    self.assertGreater(figures["signals"], 10)
                    self.assertGreater(figures["answers"], 10)
                    self.assertLessEqual(figures["answer_p50_us"], figures["answer_worst_us"])
                    self.assertGreater(figures["gbytes_per_second"], 0)
                    self.assertLessEqual(figures["p50_us"], figures["p999_us"])
                    self.assertLessEqual(figures["p999_us"], figures["worst_us"])
                self.assertIn(row["attack"], out)
        self.assertEqual(node0.show("status")["healthy"], True)

    def test_mistakes_are_named(self):
        self.start_nodes(2)
        status, _, err = self.run_tenants("--attack", "earthquake")
        self.assertEqual(status, 2)
        self.assertIn("earthquake", err)
        missing = subprocess.run([BIN / "mkbench", "tenants", "--daemon", self.folder / "none.sock", "--peer-daemon",
                                  self.folder / "none.sock", "--attack", "rival"], capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(missing.returncode, 1)
        self.assertIn("none.sock", missing.stderr)

    def test_a_bystander_that_loses_its_daemon_is_a_failure(self):
        node0, node1 = self.start_nodes(2)
        process = self.spawn(BIN / "mkbench", "tenants", "--daemon", node0.socket, "--peer-daemon", node1.socket, "--attack", "rival",
                             "--seconds", "30", "--turns", "1")
        wait_until(lambda: any(c["group"].startswith("bystander") and c["arrivals_total"] for c in node1.show("channels")),
                   "signals of the bystander")
        node1.kill()
        status, out, err = self.finish(process)
        self.assertEqual(status, 1, out + err)
        self.assertIn("rival", err)


if __name__ == "__main__":
    unittest.main()
