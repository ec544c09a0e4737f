"""Trains an attention layer for a few steps with the sequence split over the ranks (context parallelism), and the same layer on
the whole sequence beside it: their losses must agree.

    torchrun --nproc-per-node 2 train_context_parallel.py --socket /run/mkernel/mkerneld.sock

Needs a daemon on each node (mkerneld). On CPU tensors it runs anywhere; the sizes are small for that reason."""

import argparse
import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F

import mkernel
import mkernel.torch
from mkernel.torch.ring_flash_attn import zigzag_ring_flash_attn_qkvpacked_func


class Attention(torch.nn.Module):
    """Causal self-attention with a residual connection. x [batch, sequence, features]; with `parallel` this rank's positions."""

    def __init__(self, features: int, heads: int, parallel: bool) -> None:
        super().__init__()
        self.heads, self.parallel = heads, parallel
        self.norm = torch.nn.LayerNorm(features, elementwise_affine=False)
        self.qkv = torch.nn.Linear(features, 3 * features, dtype=torch.bfloat16)
        self.out = torch.nn.Linear(features, features, dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1))  # [batch, sequence, 3, heads, head_dim]
        if self.parallel:
            attended = zigzag_ring_flash_attn_qkvpacked_func(qkv, causal=True)
        else:
            q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        return x + self.out(attended.flatten(2))


def zigzag(x: torch.Tensor, rank: int, world: int) -> torch.Tensor:
    """This rank's positions of [batch, sequence, ...]: the same work for all, for early queries see few keys and late ones many."""
    parts = [x[:, slice(*mkernel.block_range(x.shape[1], 2 * world, part))] for part in (rank, 2 * world - 1 - rank)]
    return torch.cat(parts, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--socket", help="of the daemon of this node")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=64, help="a multiple of twice the number of ranks")
    parser.add_argument("--batch", type=int, default=2)
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mkernel.torch.init(socket=arguments.socket)
    torch.manual_seed(0)
    whole = Attention(arguments.features, arguments.heads, parallel=False)
    part = copy.deepcopy(whole)
    part.parallel = True
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in (whole, part)]
    shape = (arguments.batch, arguments.sequence, arguments.features)
    for step in range(arguments.steps):
        torch.manual_seed(step + 1)  # the same data on every rank
        x, target = torch.randn(shape).bfloat16(), torch.randn(shape)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = F.mse_loss(whole(x).float(), target)
        loss.backward()
        # Each rank has its part of the sequence and of the loss; what the ranks share gets the sum of their gradients.
        mine = F.mse_loss(part(zigzag(x, rank, world)).float(), zigzag(target, rank, world)) / world
        mine.backward()
        for parameter in part.parameters():
            dist.all_reduce(parameter.grad)
        for optimizer in optimizers:
            optimizer.step()
        total = mine.detach().clone()
        dist.all_reduce(total)
        if rank == 0:
            print(f"step {step}: loss {total:.5f} with context parallelism, {loss:.5f} without", flush=True)
        if abs(total - loss) > 0.01 * abs(loss):
            raise SystemExit(f"step {step}: the losses differ: {total:.5f} and {loss:.5f}")
    if rank == 0:
        counters = mkernel.torch.counters()
        print(f"{counters['launches']} launches, {counters['plans_created']} operations, fallbacks: {counters['fallbacks'] or 'none'}")
    mkernel.torch.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
