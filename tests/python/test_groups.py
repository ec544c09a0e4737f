"""Groups, buffers, views and puts of the Python client on two nodes with four ranks."""
import unittest

from client_test import ClientTest


class Groups(ClientTest):
    def setUp(self):
        super().setUp()
        self.start_nodes(2)

    def test_groups(self):
        self.run_ranks("group_scenarios.groups")

    def test_secret(self):
        self.run_ranks("group_scenarios.secret")

    def test_buffers_and_views(self):
        self.run_ranks("group_scenarios.buffers")

    def test_puts_signals_and_waits(self):
        self.run_ranks("group_scenarios.puts")


if __name__ == "__main__":
    unittest.main()
