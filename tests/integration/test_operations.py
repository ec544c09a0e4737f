"""The operations on two nodes with real processes, every output element verified in the ranks themselves."""
import json
import unittest

from cluster import ClusterTest, wait_until

COLLECTIVE = {
    "ag_gemm": ["--m", "300", "--n", "130", "--k", "200"],
    "gemm_rs": ["--m", "301", "--n", "130", "--k", "96"],
    "gemm_ar": ["--m", "257", "--n", "129", "--k", "64", "--column-major"],
    "moe_dispatch_gemm": ["--tokens", "37", "--hidden", "64", "--n", "48", "--intermediate", "40",
                          "--shared-intermediate", "24", "--experts", "10", "--topk", "3"],
    "ring_attention": ["--sequence", "203", "--heads", "4", "--kv-heads", "2", "--head-dim", "32", "--causal"],
    "ring_attention_backward": ["--sequence", "101", "--heads", "4", "--kv-heads", "2", "--head-dim", "32", "--causal"],
}
# Those of each rank alone too.
SMALL = {**COLLECTIVE, "attention": ["--sequence", "131", "--heads", "4", "--kv-heads", "2", "--head-dim", "32", "--causal"],
         "attention_backward": ["--sequence", "67", "--heads", "4", "--kv-heads", "2", "--head-dim", "32"]}


class Operations(ClusterTest):
    def run_all(self, **settings):
        self.start_nodes(2, settings)
        for op, shape in SMALL.items():
            with self.subTest(op=op):
                for dtype in ("bf16", "f16"):
                    out = self.bench_all(op, *shape, "--dtype", dtype, "--iterations", "3")
                    self.assertIn("verified", out)

    def test_over_tcp(self):
        self.run_all()

    def test_over_tcp_with_two_proxies(self):
        self.run_all(proxy={"threads": 2})

    def test_over_the_emulated_fabric(self):
        self.run_all(transport={"kind": "emulated"})

    def test_over_a_fabric_that_drops_duplicates_and_reorders(self):
        self.run_all(transport={"kind": "emulated"}, **{
            "transport.emulated": {"drop": 0.02, "duplicate": 0.05, "reorder": 0.2, "latency_us": 50, "seed": 7}})

    def test_link_pulled_and_restored_during_operations(self):
        self.start_nodes(2, {"transport": {"kind": "emulated", "peer_timeout_ms": 30000}})
        ranks = [self.bench(r, 4, self.daemons[r // 2], "gemm_ar", *SMALL["gemm_ar"], "--iterations", "60")
                 for r in range(4)]
        pulls = 0
        wait_until(lambda: any(c["puts_total"] for c in self.daemons[0].show("channels")), "puts on a channel")
        while ranks[0].poll() is None and pulls < 20:
            for state in ("--down", "--up"):
                self.daemons[0].mkctl("link", "--peer", "node1", state)
            pulls += 1
        for rank, process in enumerate(ranks):
            status, out, err = self.finish(process, 240)
            self.assertEqual(status, 0, f"rank {rank} after {pulls} pulls:\n{out}{err}")
        self.assertGreater(pulls, 0)

    def test_three_nodes_and_one_node(self):
        self.start_nodes(3)
        for op, shape in SMALL.items():
            with self.subTest(op=op):
                self.assertIn("verified", self.bench_all(op, *shape, "--iterations", "2"))

    def test_one_rank_alone(self):
        self.start_nodes(1)
        for op, shape in SMALL.items():
            with self.subTest(op=op):
                self.assertIn("verified", self.bench_all(op, *shape, "--iterations", "2", ranks_per_node=1))

    def test_several_operations_in_one_run(self):
        """--then: each with shapes of its own, all with the iterations of the run."""
        self.start_nodes(2)
        first, *others = ([op, *shape] for op, shape in SMALL.items())
        then = [word for words in others for word in ("--then", " ".join(words))]
        out = self.bench_all(*first, *then, "--iterations", "2")
        self.assertEqual(out.count(" verified"), len(SMALL), out)
        for op in SMALL:
            self.assertIn(f"\n{op} ", "\n" + out)

    def test_operations_of_a_run_that_are_none_are_refused_by_name(self):
        self.start_nodes(1)
        for text, said in (("no_such_op --m 8", "no_such_op"), ("gemm_rs --group other", "--group"), ("--m 8", "operation"),
                           ("gemm_rs --cu-seqlens 0,8", "--cu-seqlens")):
            with self.subTest(text=text):
                status, out, err = self.finish(self.bench(0, 1, self.daemons[0], "ag_gemm", "--then", text))
                self.assertNotEqual(status, 0)
                self.assertIn(said, out + err)

    def test_timeline(self):
        """--trace: every role of every rank, and waits that lie inside their roles."""
        self.start_nodes(2)
        path = self.folder / "timeline.json"
        self.bench_all("gemm_ar", "--m", "300", "--n", "128", "--k", "64", "--iterations", "1", "--trace", path)
        events = json.loads(path.read_text())["traceEvents"]
        self.assertEqual({e["args"]["name"] for e in events if e["name"] == "process_name"},
                         {f"rank {r} on node{r // 2}" for r in range(4)})
        spans = [e for e in events if e["ph"] == "X"]
        roles = {(e["pid"], e["tid"]): e for e in spans if e["cat"] == "role"}
        for rank in range(4):
            self.assertLessEqual({"compute", "intra_comm", "inter_send"},
                                 {e["name"] for e in roles.values() if e["pid"] == rank})
        waits = [e for e in spans if e["cat"] == "wait" and (e["pid"], e["tid"]) in roles]
        self.assertTrue(any(e.get("args", {}).get("rank", e["pid"]) != e["pid"] for e in waits), "nobody waited for another rank")
        # What follows the roles, the wait for the last puts, is on track 0 after its role.
        for wait in waits:
            role = roles[wait["pid"], wait["tid"]]
            if wait["ts"] < role["ts"] + role["dur"]:
                self.assertGreaterEqual(wait["ts"], role["ts"])
                self.assertLessEqual(wait["ts"] + wait["dur"], role["ts"] + role["dur"] + 0.01)  # microseconds

if __name__ == "__main__":
    unittest.main()
