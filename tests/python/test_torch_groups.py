"""Groups of mkernel.torch: agreement, missing and late ranks, Ctrl-C, kills, fork, interpreter exit."""
import sys

from client_test import assert_survives, own_exceptions
from torch_test import PACKAGE, PATIENCE, TorchTest, main


class Groups(TorchTest):
    FORKS = False  # some are looked at when they end

    def test_agreement(self):
        self.start_nodes(1)
        self.run_job("torch_group_scenarios.agreement", 3, STORE=self.folder / "store")

    def test_late_rank(self):
        self.start_nodes(2)
        self.run_job("torch_group_scenarios.late_rank", 2)

    def test_ctrl_c(self):
        self.run_interrupted("torch_group_scenarios.interrupted")

    def test_two_groups_at_once(self):
        self.start_nodes(1)
        self.run_job("torch_group_scenarios.two_groups_at_once", 3)

    def test_the_daemon_restarts(self):
        (daemon,) = self.start_nodes(1)
        ranks = self.start_job("torch_group_scenarios.daemon_restarts", 2)
        for process in ranks:
            self.wait_for_line(process, "ready")
        daemon.kill()
        daemon.start()
        for process in ranks:
            process.stdin.write("\n")
            process.stdin.flush()
        for rank, process in enumerate(ranks):
            status, out, err = self.finish(process)
            self.assertEqual(status, 0, f"rank {rank}:\n{out}{err}")

    def test_a_killed_rank_is_named(self):
        self.start_nodes(2)
        first, second = self.start_job("torch_group_scenarios.bereaved", 2)
        for process in (first, second):
            self.wait_for_line(process, "waiting")
        second.kill()
        status, out, err = self.finish(first)
        self.assertEqual(status, 0, out + err)

    def test_the_package_alone_does_not_import_torch(self):
        script = "import mkernel, sys; assert 'torch' not in sys.modules"
        status, out, err = self.finish(self.spawn(sys.executable, "-B", "-c", script, PYTHONPATH=PACKAGE))
        self.assertEqual(status, 0, out + err)

    def test_exceptions_come_back_from_a_process_pool(self):
        import mkernel.torch

        kinds = own_exceptions(mkernel.torch)
        self.assertGreaterEqual(set(kinds), {mkernel.torch.Refused, mkernel.torch.NotInitialized})
        for kind in kinds:
            with self.subTest(kind=kind):
                assert_survives(self, kind)
        self.start_nodes(1)
        self.run_job("torch_group_scenarios.pool", 1)

    def test_fork(self):
        self.start_nodes(1)
        self.run_job("torch_group_scenarios.forked", 2)

    def test_exit(self):
        self.start_nodes(1)
        for scenario in ("exit_in_call", "exit_idle"):
            with self.subTest(scenario=scenario):
                processes = self.start_job(f"torch_group_scenarios.{scenario}", 2)
                for process in processes:
                    status, out, err = self.finish(process, 2 * PATIENCE)
                    self.assertEqual(status, 0, out + err)


if __name__ == "__main__":
    main()
