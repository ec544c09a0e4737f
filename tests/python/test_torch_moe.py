"""The MoE operators of mkernel.torch, and what stands in for other projects' MoE layers."""
from torch_test import TorchTest, main


class Moe(TorchTest):
    def test_values_on_two_nodes(self):
        self.start_nodes(2)
        self.run_job("torch_moe_scenarios.values", 4)

    def test_values_on_one_node(self):
        self.start_nodes(1)
        self.run_job("torch_moe_scenarios.values", 3)

    def test_copies_and_plans_are_told(self):
        self.start_nodes(1)
        self.run_job("torch_moe_scenarios.copies", 2)

    def test_compile(self):
        self.start_nodes(1)
        self.run_job("torch_moe_scenarios.compiled", 2)

    def test_tensors_of_gpus(self):
        self.start_nodes(1)
        self.run_job("torch_moe_scenarios.on_gpus", 2)

    def test_wrong_input(self):
        self.start_nodes(1)
        self.run_job("torch_moe_scenarios.wrong", 2)

    def test_launches_that_every_rank_refuses(self):
        self.start_nodes(2)
        self.run_job("torch_moe_scenarios.refused", 4)

    def test_liger(self):
        self.start_nodes(2)
        self.run_job("torch_moe_layer_scenarios.liger", 4)

    def test_mega_moe(self):
        self.start_nodes(2)
        self.run_job("torch_moe_layer_scenarios.mega", 4)


if __name__ == "__main__":
    main()
