"""mkernel.torch behind torch.ops.symm_mem, Inductor's pass for tensor parallelism, and Megatron's linear layer."""
import shutil
import unittest

from torch_test import TorchTest, main


class Patches(TorchTest):
    def test_symm_mem(self):
        self.start_nodes(1)
        self.run_job("torch_patch_scenarios.symm_mem", 3)

    def test_strides_are_those_that_pytorch_promises(self):
        self.start_nodes(1)
        self.run_job("torch_patch_scenarios.strides", 2)

    @unittest.skipUnless(shutil.which("g++"), "Inductor needs a C++ compiler")
    def test_inductor(self):
        self.start_nodes(2)
        self.run_job("torch_patch_scenarios.inductor", 2)

    def test_megatron(self):
        self.start_nodes(2)
        self.run_job("torch_patch_scenarios.megatron", 2)

    def test_mkctl_counts_fallbacks_in_the_session_of_the_process_group(self):
        self.start_nodes(2)
        sockets = ",".join(str(daemon.socket) for daemon in self.daemons)
        ranks = self.start_job("torch_patch_scenarios.counted", 2, SOCKETS=sockets)
        for process in ranks:
            self.wait_for_line(process, "counted")
        # Each rank has a session with either daemon, the one of its first process group with its own.
        for node, daemon in enumerate(self.daemons):
            shown = {row["client_name"]: (row["launches_total"], row["fallbacks_total"]) for row in daemon.show("sessions")}
            self.assertEqual(shown, {f"torch rank {node}": (1, 5), f"torch rank {1 - node}": (0, 3)})
        for process in ranks:
            self.go_on(process)
        for process in ranks:
            status, out, err = self.finish(process)
            self.assertEqual(status, 0, out + err)


if __name__ == "__main__":
    main()
