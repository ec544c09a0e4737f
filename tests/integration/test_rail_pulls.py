"""A rail that is pulled in the middle of an operation: its channels take another wire and replay, every result is right,
and no put is lost or arrives twice. MKERNEL_PULLS sets how many (tests/perf/rail_pulls.py does thousands)."""
import os
import statistics
import unittest

from cluster import ClusterTest
from rail_pulls import RAILS, pull_while_operating

PULLS = int(os.environ.get("MKERNEL_PULLS", "50"))


class RailPulls(ClusterTest):
    def test_every_result_is_right_while_rails_are_pulled(self):
        self.start_nodes(2, {"transport": {"kind": "emulated"}, "proxy": {"threads": RAILS}})
        puller, iterations = pull_while_operating(self, PULLS, 400, seed=1)
        self.assertGreater(min(puller.by_rail), 0, "every rail was pulled")
        print(f"{len(puller.seconds)} pulls ({puller.twice} of two wires) during {iterations} verified iterations: "
              f"median {1e3 * statistics.median(puller.seconds):.0f} ms to the next put", flush=True)
        for daemon in self.daemons:
            (peer,) = daemon.show("peers")
            self.assertGreaterEqual(peer["paths_lost_total"], PULLS, "each pull is noticed at both ends")
            for rail in peer["rails"]:
                lost, log = rail["paths_lost_total"], daemon.log.read_text()
                self.assertEqual(log.count(f"rail {rail['rail']} to node {peer['node']}: lost wire "), lost)
                self.assertGreaterEqual(log.count(f"rail {rail['rail']} to node {peer['node']}: puts go over wire "), lost)

    def test_a_rail_that_is_not_there_is_refused(self):
        self.start_nodes(2, {"transport": {"kind": "emulated"}, "proxy": {"threads": RAILS}})
        refused = self.daemons[0].mkctl("link", "--peer", "node1", "--rail", str(RAILS), "--down", check=False)
        self.assertEqual(refused.returncode, 1)
        self.assertIn(f"rail {RAILS}", refused.stderr)
        self.assertEqual(self.daemons[0].mkctl("link", "--peer", "node1", "--rail", "0", check=False).returncode, 1)


if __name__ == "__main__":
    unittest.main()
