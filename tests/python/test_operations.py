"""The five operations through the Python client on two nodes with four ranks, every element against fp64."""
import unittest

from client_test import WORLD, ClientTest


class Operations(ClientTest):
    def setUp(self):
        super().setUp()
        self.start_nodes(2)

    def test_gemm_operations(self):
        self.run_ranks("operation_scenarios.gemms")

    def test_grouped_gemm(self):
        self.run_ranks("operation_scenarios.grouped_gemms")

    def test_moe(self):
        self.run_ranks("operation_scenarios.moes")

    def test_attention(self):
        self.run_ranks("attention_scenarios.attentions")

    def test_operands_that_are_refused(self):
        self.run_ranks("operand_scenarios.bad_operands")

    def test_arguments_of_wrong_types_are_refused_by_name(self):
        self.run_ranks("operand_scenarios.wrong_types", 1)
        self.run_ranks("operand_scenarios.taken_types", 1)

    def test_mkctl_counts_launches_and_fallbacks_of_each_session(self):
        ranks = [self.rank("operation_scenarios.counted", rank, WORLD) for rank in range(WORLD)]
        for line, launches in (("counted", 6), ("once more", 7)):
            for process in ranks:
                self.wait_for_line(process, line)
            shown = {row["client_name"]: (row["launches_total"], row["fallbacks_total"])
                     for daemon in self.daemons for row in daemon.show("sessions")}
            self.assertEqual(shown, {f"rank {rank}": (launches, 10 + rank) for rank in range(WORLD)})
            for process in ranks:
                self.go_on(process)
        for process in ranks:
            status, out, err = self.finish(process)
            self.assertEqual(status, 0, out + err)


if __name__ == "__main__":
    unittest.main()
