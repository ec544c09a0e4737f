"""Trains a tensor-parallel transformer block for a few steps with mkernel's fused operators, and the same block without
tensor parallelism beside it: their losses must agree.

    torchrun --nproc-per-node 2 train_tensor_parallel.py --socket /run/mkernel/mkerneld.sock

Needs a daemon on each node (mkerneld). On CPU tensors it runs anywhere; the sizes are small for that reason."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F

import mkernel.torch
from mkernel.torch.nn import ColumnParallelLinear, RowParallelLinear


class Block(torch.nn.Module):
    """A pre-norm transformer block. The four linear layers come from outside: ordinary ones, or parallel ones with a part of the
    heads and of the hidden features each. Activations are [sequence, batch, features]."""

    def __init__(self, features: int, heads: int, qkv: torch.nn.Module, out: torch.nn.Module, up: torch.nn.Module,
                 down: torch.nn.Module) -> None:
        super().__init__()
        self.heads = heads  # of this rank
        self.norm1, self.norm2 = (torch.nn.LayerNorm(features, elementwise_affine=False) for _ in range(2))
        self.qkv, self.out, self.up, self.down = qkv, out, up, down

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (self._by_head(part) for part in self.qkv(self.norm1(x)).unflatten(-1, (self.heads, 3, -1)).unbind(-2))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.permute(2, 0, 1, 3).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))

    @staticmethod
    def _by_head(x: torch.Tensor) -> torch.Tensor:
        return x.permute(1, 2, 0, 3)  # [sequence, batch, heads, features] to [batch, heads, sequence, features]


def make_blocks(features: int, heads: int) -> "tuple[Block, Block]":
    """The whole block, which is the same on every rank, and this rank's part of it."""
    torch.manual_seed(0)
    sizes = {"qkv": (1, 3), "out": (1, 1), "up": (1, 4), "down": (4, 1)}
    whole = {name: torch.nn.Linear(i * features, o * features, dtype=torch.bfloat16) for name, (i, o) in sizes.items()}
    part = {name: (ColumnParallelLinear if name in ("qkv", "up") else RowParallelLinear).from_linear(linear)
            for name, linear in whole.items()}
    return Block(features, heads, **whole), Block(features, heads // dist.get_world_size(), **part)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--socket", help="of the daemon of this node")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=32)
    parser.add_argument("--batch", type=int, default=2)
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mkernel.torch.init(socket=arguments.socket)
    whole, part = make_blocks(arguments.features, arguments.heads)
    optimizers = [torch.optim.SGD(block.parameters(), lr=0.1) for block in (whole, part)]
    shape = (arguments.sequence, arguments.batch, arguments.features)
    for step in range(arguments.steps):
        torch.manual_seed(step + 1)  # the same data on every rank
        x, target = torch.randn(shape).bfloat16(), torch.randn(shape)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = F.mse_loss(whole(x).float(), target)
        loss.backward()
        # Each rank has its part of the sequence, and its part of the loss.
        mine = F.mse_loss(part(x.chunk(world)[rank]).float(), target.chunk(world)[rank]) / world
        mine.backward()
        for optimizer in optimizers:
            optimizer.step()
        total = mine.detach().clone()
        dist.all_reduce(total)
        if rank == 0:
            print(f"step {step}: loss {total:.5f} with tensor parallelism, {loss:.5f} without", flush=True)
        if abs(total - loss) > 0.01 * abs(loss):
            raise SystemExit(f"step {step}: the losses differ: {total:.5f} and {loss:.5f}")
    if rank == 0:
        counters = mkernel.torch.counters()
        print(f"{counters['launches']} launches, {counters['plans_created']} operations, copies: {counters['copies'] or 'none'}")
    mkernel.torch.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
