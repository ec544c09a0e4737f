"""Attention in mkernel.torch: the operators, ring-flash-attention's functions, PyTorch's context parallelism."""
from torch_test import TorchTest, main


class Operators(TorchTest):
    def test_values_on_two_nodes(self):
        self.start_nodes(2)
        self.run_job("torch_attention_scenarios.values", 4)

    def test_values_on_one_node(self):
        self.start_nodes(1)
        self.run_job("torch_attention_scenarios.values", 2)

    def test_ranks_alone(self):
        self.start_nodes(1)
        self.run_job("torch_attention_scenarios.alone", 2)

    def test_windows(self):
        self.start_nodes(1)
        self.run_job("torch_attention_scenarios.windows", 2)

    def test_backward_in_tiles(self):
        self.start_nodes(1)
        self.run_job("torch_attention_scenarios.tiles", 3)

    def test_fallbacks(self):
        self.start_nodes(2)
        self.run_job("torch_attention_scenarios.fallbacks", 4)

    def test_compile(self):
        self.start_nodes(1)
        self.run_job("torch_attention_scenarios.compiled", 2)

    def test_wrong_input(self):
        self.start_nodes(1)
        self.run_job("torch_attention_scenarios.wrong", 2)


class Others(TorchTest):
    def test_ring_flash_attn(self):
        self.start_nodes(2)
        self.run_job("torch_attention_other_scenarios.ring_flash_attn", 4)

    def test_context_parallel(self):
        self.start_nodes(1)
        self.run_job("torch_attention_other_scenarios.context_parallel", 2)

    def test_context_parallel_on_two_nodes(self):
        self.start_nodes(2)
        self.run_job("torch_attention_other_scenarios.context_parallel", 4)

    def test_operators_on_dtensors(self):
        self.start_nodes(1)
        self.run_job("torch_attention_other_scenarios.by_dtensor", 2)


class Varlen(TorchTest):
    def scenario(self, name, world, nodes=1):
        self.start_nodes(nodes)
        self.run_job(f"torch_attention_varlen_scenarios.{name}", world)

    def test_packing(self):
        self.scenario("packing", 1)

    def test_values(self):
        self.scenario("values", 2)

    def test_values_on_two_nodes(self):
        self.scenario("values", 4, nodes=2)

    def test_ring_flash_attn(self):
        self.scenario("ring_flash_attn", 2)

    def test_fallbacks(self):
        self.scenario("fallbacks", 3)

    def test_compile(self):
        self.scenario("compiled", 2)


if __name__ == "__main__":
    main()
