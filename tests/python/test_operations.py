"""The five operations through the Python client on two nodes with four ranks, every element against fp64."""
import unittest

from client_test import ClientTest


class Operations(ClientTest):
    def setUp(self):
        super().setUp()
        self.start_nodes(2)

    def test_gemm_operations(self):
        self.run_ranks("operation_scenarios.gemms")

    def test_moe_and_ring_attention(self):
        self.run_ranks("operation_scenarios.moe_and_attention")

    def test_operands_that_are_refused(self):
        self.run_ranks("operation_scenarios.bad_operands")


if __name__ == "__main__":
    unittest.main()
