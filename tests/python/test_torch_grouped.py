"""grouped_mm() of mkernel.torch."""
from torch_test import TorchTest, main


class Grouped(TorchTest):
    def test_values(self):
        self.start_nodes(1)
        self.run_job("torch_grouped_scenarios.values", 2)

    def test_fallbacks(self):
        self.start_nodes(1)
        self.run_job("torch_grouped_scenarios.fallbacks", 1)

    def test_compile(self):
        self.start_nodes(1)
        self.run_job("torch_grouped_scenarios.compiled", 1)


if __name__ == "__main__":
    main()
