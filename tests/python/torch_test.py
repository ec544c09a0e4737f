"""Base of the tests of mkernel.torch: ranks are processes of one torch.distributed job over gloo on loopback, on real daemons."""
import importlib.util
import sys
import unittest

from client_test import PACKAGE, PATIENCE, ClientTest, free_ports  # noqa: F401: tests take the first two from here

if importlib.util.find_spec("torch") is None:
    print("PyTorch is not installed for this interpreter")
    sys.exit(77)


class TorchTest(ClientTest):
    def job(self, world, **environment):
        """What the ranks of one job have in their environment."""
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_ports(1)[0], "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": 1,
                "TORCHINDUCTOR_CACHE_DIR": self.folder / "inductor", **environment}

    def run_job(self, scenario, world, **environment):
        """run_ranks() as one job."""
        return self.run_ranks(scenario, world, **self.job(world, **environment))

    def start_job(self, scenario, world, **environment):
        """The processes of the ranks, running."""
        job = self.job(world, **environment)
        return [self.rank(scenario, rank, world, **job) for rank in range(world)]


main = unittest.main
