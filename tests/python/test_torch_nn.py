"""The layers of mkernel.torch.nn, and the examples under torchrun."""
import pathlib
import sys

from torch_test import PACKAGE, PATIENCE, TorchTest, main

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "client" / "python" / "examples"


class Layers(TorchTest):
    def test_layers(self):
        self.start_nodes(2)
        self.run_job("torch_nn_scenarios.layers", 2)

    def test_autocast(self):
        self.start_nodes(1)
        self.run_job("torch_nn_scenarios.autocast", 2)

    def run_example(self, name, *arguments):
        """Two ranks under torchrun; returns what they print."""
        daemon = self.start_nodes(1)[0]
        job = self.job(2)
        torchrun = [sys.executable, "-B", "-m", "torch.distributed.run", "--nproc-per-node", 2, "--master-addr", "127.0.0.1",
                    "--master-port", job["MASTER_PORT"]]
        process = self.spawn(*torchrun, EXAMPLES / name, "--socket", daemon.socket, *arguments, PYTHONPATH=PACKAGE, **job)
        status, out, err = self.finish(process, 3 * PATIENCE)
        self.assertEqual(status, 0, out + err)
        return out

    def test_training(self):
        out = self.run_example("train_tensor_parallel.py", "--steps", 3, "--features", 32, "--sequence", 16)
        losses = [line for line in out.splitlines() if "with tensor parallelism" in line]
        self.assertEqual(len(losses), 3, out)
        self.assertIn("copies: none", out)
        self.assertEqual(len({line.partition("loss")[2] for line in losses}), 3, "each step has its own loss")

    def test_training_with_long_sequences(self):
        out = self.run_example("train_context_parallel.py", "--steps", 3, "--features", 32, "--sequence", 16)
        losses = [line for line in out.splitlines() if "with context parallelism" in line]
        self.assertEqual(len({line.partition("loss")[2] for line in losses}), 3, out)
        self.assertIn("6 launches, 2 operations, fallbacks: none", out)  # each step one forward and one backward

    def test_serving(self):
        out = self.run_example("serve_cuda_graphs.py", "--batches", 20)
        self.assertIn("20 batches of 1 to 64 rows", out)
        self.assertIn(", 0 operations made on the way", out)


if __name__ == "__main__":
    main()
