"""The layers of mkernel.torch.nn, and the example that trains a transformer block with them under torchrun."""
import pathlib
import sys

from torch_test import PACKAGE, PATIENCE, TorchTest, main

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "client" / "python" / "examples" / "train_tensor_parallel.py"


class Layers(TorchTest):
    def test_layers(self):
        self.start_nodes(2)
        self.run_job("torch_nn_scenarios.layers", 2)

    def test_example(self):
        daemon = self.start_nodes(1)[0]
        job = self.job(2)
        torchrun = [sys.executable, "-B", "-m", "torch.distributed.run", "--nproc-per-node", 2, "--master-addr", "127.0.0.1",
                    "--master-port", job["MASTER_PORT"]]
        process = self.spawn(*torchrun, EXAMPLE, "--socket", daemon.socket, "--steps", 3, "--features", 32, "--sequence", 16,
                             PYTHONPATH=PACKAGE, **job)
        status, out, err = self.finish(process, 3 * PATIENCE)
        self.assertEqual(status, 0, out + err)
        losses = [line for line in out.splitlines() if "with tensor parallelism" in line]
        self.assertEqual(len(losses), 3, out)
        self.assertIn("copies: none", out)
        self.assertEqual(len({line.partition("loss")[2] for line in losses}), 3, "each step has its own loss")


if __name__ == "__main__":
    main()
