"""mkernel.torch behind torch.ops.symm_mem, Inductor's pass for tensor parallelism, and Megatron's linear layer."""
import shutil
import unittest

from torch_test import TorchTest, main


class Patches(TorchTest):
    def test_symm_mem(self):
        self.start_nodes(1)
        self.run_job("torch_patch_scenarios.symm_mem", 3)

    @unittest.skipUnless(shutil.which("g++"), "Inductor needs a C++ compiler")
    def test_inductor(self):
        self.start_nodes(2)
        self.run_job("torch_patch_scenarios.inductor", 2)

    def test_megatron(self):
        self.start_nodes(2)
        self.run_job("torch_patch_scenarios.megatron", 2)


if __name__ == "__main__":
    main()
