"""The operators of mkernel.torch: values, copies, buckets, gradients, torch.compile, wrong input."""
from torch_test import TorchTest, main


class Operators(TorchTest):
    def test_values_on_two_nodes(self):
        self.start_nodes(2)
        self.run_job("torch_operator_scenarios.values", 4)

    def test_values_on_one_node(self):
        self.start_nodes(1)
        self.run_job("torch_operator_scenarios.values", 3)

    def test_copies_are_told(self):
        self.start_nodes(1)
        self.run_job("torch_operator_scenarios.copies", 2)

    def test_short_way(self):
        self.start_nodes(1)
        self.run_job("torch_short_scenarios.values", 2)

    def test_buckets(self):
        self.start_nodes(2)
        self.run_job("torch_operator_scenarios.buckets", 2)

    def test_gradients(self):
        self.start_nodes(2)
        self.run_job("torch_operator_scenarios.gradients", 4)

    def test_compile(self):
        self.start_nodes(1)
        self.run_job("torch_operator_scenarios.compiled", 2)

    def test_wrong_input(self):
        self.start_nodes(1)
        self.run_job("torch_operator_scenarios.wrong", 2)


if __name__ == "__main__":
    main()
