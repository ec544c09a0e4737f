"""Groups that cannot come to be, and operations that the ranks do not agree on: clear errors before anything is launched."""
import unittest

from cluster import ClusterTest, wait_until

GEMM = ["ag_gemm", "--m", "64", "--n", "64", "--k", "64", "--iterations", "1"]


class Groups(ClusterTest):
    def expect(self, process, *texts):
        status, out, err = self.finish(process)
        self.assertEqual(status, 1, out + err)
        for text in texts:
            self.assertIn(text, err)

    def test_duplicate_rank(self):
        node0, node1 = self.start_nodes(2)
        first = self.bench(0, 2, node0, *GEMM)
        wait_until(lambda: node0.show("groups"), "the first rank waits")
        self.expect(self.bench(0, 2, node1, *GEMM), "rank 0", "node0", str(first.pid))
        second = self.bench(1, 2, node1, *GEMM)  # the first was not harmed
        for process in (first, second):
            self.assertEqual(self.finish(process)[0], 0)

    def test_missing_rank_is_named(self):
        node0, node1 = self.start_nodes(2)
        waiting = [self.bench(rank, 3, node, *GEMM, "--join-timeout", "10") for rank, node in ((0, node0), (2, node1))]
        for process in waiting:
            self.expect(process, "rank 1", "DEADLINE_EXCEEDED")

    def test_world_sizes_differ(self):
        node0, node1 = self.start_nodes(2)
        first = self.bench(0, 2, node0, *GEMM)
        wait_until(lambda: node0.show("groups"), "the first rank waits")
        self.expect(self.bench(1, 3, node1, *GEMM), "world size", "2", "3")
        self.assertEqual(self.finish(self.bench(1, 2, node1, *GEMM))[0], 0)
        self.assertEqual(self.finish(first)[0], 0)

    def test_rank_outside_the_world(self):
        (node0,) = self.start_nodes(1)
        self.expect(self.bench(5, 2, node0, *GEMM), "rank", "5", "0..1")

    def test_shapes_differ(self):
        node0, node1 = self.start_nodes(2)
        ranks = [self.bench(0, 2, node0, "gemm_rs", "--m", "64", "--n", "64", "--k", "64"),
                 self.bench(1, 2, node1, "gemm_rs", "--m", "64", "--n", "96", "--k", "64")]
        for process in ranks:
            self.expect(process, "rank 0", "rank 1", "n=64", "n=96")

    def test_unequal_ranks_per_node(self):
        node0, node1 = self.start_nodes(2)
        ranks = [self.bench(r, 3, node, *GEMM) for r, node in ((0, node0), (1, node0), (2, node1))]
        for process in ranks:
            self.expect(process, "node0", "node1")

    def test_zero_size(self):
        (node0,) = self.start_nodes(1)
        self.expect(self.bench(0, 1, node0, "ag_gemm", "--m", "64", "--n", "0", "--k", "64"), "n", "0")


if __name__ == "__main__":
    unittest.main()
