"""Base of the tests of mkernel.torch: ranks are processes of one torch.distributed job over gloo on loopback, on real daemons."""
import atexit
import importlib.util
import os
import signal
import sys
import traceback
import unittest

from client_test import PACKAGE, PATIENCE, ClientTest, free_ports  # noqa: F401: tests take the first two from here

if importlib.util.find_spec("torch") is None:
    print("PyTorch is not installed for this interpreter")
    sys.exit(77)


def be_rank(scenario, environment):
    """In a child of this process, in place of the program that it was to become: runs one rank, as rank.py does, and does not return."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # one of them tells the parent that the program runs
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    os.environ.update({key: str(value) for key, value in environment.items()})
    status = 1
    try:
        module, function = scenario.split(".")
        getattr(importlib.import_module(module), function)()
        status = 0
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


class TorchTest(ClientTest):
    # Ranks are forks of this process, so that PyTorch, which takes two seconds, is imported once. Without: programs of their own, which
    # ranks must be that use GPUs, or whose end is looked at.
    FORKS = True

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if cls.FORKS:
            importlib.import_module("mkernel.torch")

    def spawn_rank(self, scenario, **environment):
        if not self.FORKS:
            return super().spawn_rank(scenario, **environment)
        sys.stdout.flush()
        sys.stderr.flush()
        return super().spawn_rank(scenario, preexec_fn=lambda: be_rank(scenario, environment), **environment)

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

    def run_interrupted(self, scenario):
        """Ctrl-C for rank 0 of two while it waits for rank 1, which is let go on afterwards. Both have to end well."""
        self.start_nodes(1)
        first, second = self.start_job(scenario, 2)
        self.wait_for_line(first, "waiting")
        self.interrupt_wait(first, "interrupted")
        self.go_on(second)
        for process in (second, first):
            status, out, err = self.finish(process)
            self.assertEqual(status, 0, out + err)


main = unittest.main
