"""Serves a tensor-parallel feed-forward layer: batches of any size come in, and each is one replay of a CUDA graph that was captured
for the next larger size. Every result is compared with the layer in one piece.

    torchrun --nproc-per-node 2 serve_cuda_graphs.py --socket /run/mkernel/mkerneld.sock

Needs a daemon on each node (mkerneld). Without a GPU it runs the same layers without graphs."""

import argparse
import os
import random

import torch
import torch.distributed as dist

import mkernel.torch

FEATURES, HIDDEN = 256, 1024


class FeedForward:
    """relu(x up^T) down^T with the hidden features spread over ranks; x and the result are the same on every rank."""

    def __init__(self, up: torch.Tensor, down: torch.Tensor, group_name: str) -> None:
        self.up, self.down, self.group_name = up, down, group_name

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(x @ self.up.t())
        return torch.ops.mkernel.fused_matmul_all_reduce(hidden, self.down.t(), "sum", self.group_name)


class Server:
    """A graph of `layer` for each size in `sizes`, captured when it is made."""

    def __init__(self, layer: FeedForward, sizes: "list[int]", device: torch.device) -> None:
        self.layer, self.sizes = layer, sizes
        self.graphs: "dict[int, torch.cuda.CUDAGraph]" = {}
        self.inputs = {size: torch.zeros(size, FEATURES, dtype=torch.bfloat16, device=device) for size in sizes}
        self.outputs: "dict[int, torch.Tensor]" = {}
        for size in sizes:
            layer(self.inputs[size])  # the first call with a shape makes its operation, which no graph can capture
            if device.type == "cuda":
                self.graphs[size] = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self.graphs[size]):
                    self.outputs[size] = layer(self.inputs[size])

    def serve(self, batch: torch.Tensor) -> torch.Tensor:
        """The rows of one batch, of at most the largest size. The result is valid until the next call."""
        rows = batch.shape[0]
        size = next(size for size in self.sizes if size >= rows)
        self.inputs[size][:rows].copy_(batch)
        if size in self.graphs:
            self.graphs[size].replay()
        else:
            self.outputs[size] = self.layer(self.inputs[size])
        return self.outputs[size][:rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--socket", help="of the daemon of this node")
    parser.add_argument("--batches", type=int, default=50)
    parser.add_argument("--largest", type=int, default=64, help="rows of the largest batch")
    arguments = parser.parse_args()

    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mkernel.torch.init(socket=arguments.socket)
    torch.manual_seed(0)  # the whole layer is the same on every rank
    up = (torch.randn(HIDDEN, FEATURES) / FEATURES ** 0.5).bfloat16()
    down = (torch.randn(FEATURES, HIDDEN) / HIDDEN ** 0.5).bfloat16()
    layer = FeedForward(up.chunk(world)[rank].to(device), down.chunk(world, 1)[rank].contiguous().to(device), dist.group.WORLD.group_name)
    sizes = [size for size in (8, 16, 32, 64, 128, 256, 512) if size < 2 * arguments.largest]
    with torch.inference_mode():
        server = Server(layer, sizes, device)
        made = mkernel.torch.counters()["plans_created"]
        dist.barrier()
        draw = random.Random(1)
        for _ in range(arguments.batches):
            batch = torch.randn(draw.randint(1, arguments.largest), FEATURES).bfloat16()  # the same on every rank
            result = server.serve(batch.to(device)).float().cpu()
            mkernel.torch.synchronize()  # a replayed graph raises nothing by itself
            wanted = torch.relu(batch.float() @ up.float().t()) @ down.float().t()
            if (result - wanted).abs().max() > 0.05 * wanted.abs().max():
                raise SystemExit(f"rank {rank}: the result of {batch.shape[0]} rows is wrong")
    if rank == 0:
        made = mkernel.torch.counters()["plans_created"] - made
        print(f"{arguments.batches} batches of 1 to {arguments.largest} rows, {len(server.graphs)} graphs, {made} operations made on the way")
    mkernel.torch.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
