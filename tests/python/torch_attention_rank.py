"""What the tests of attention in mkernel.torch have in common: a whole sequence in fp64, and what each rank holds of it."""
import torch.nn.functional as F
from torch_rank import RANK, UNIT, WORLD, close, operand, torch

NAMES = ("q", "k", "v")


def places(sequence, split, rank=RANK):
    """Positions of a rank: "zigzag", or "contiguous" parts."""
    parts, mine = (2 * WORLD, (rank, 2 * WORLD - 1 - rank)) if split == "zigzag" else (WORLD, (rank,))
    return torch.cat([torch.arange(sequence * part // parts, sequence * (part + 1) // parts) for part in mine])


class Whole:
    """Attention over a sequence, the same on every rank, with the gradients of a loss that weighs result and log-sum-exp at random.
    q [batch, queries, heads, head_dim], k and v [batch, keys, kv_heads, head_dim]; causal: the last query sees all keys. `window`: how
    many keys before and behind its own a query sees; -1: all."""

    def __init__(self, seed, queries, keys=None, *, causal, heads=(4, 2), batch=2, dim=16, dtype=torch.bfloat16, scale=None, rank=0,
                 with_lse=True, window=(-1, -1)):
        keys = queries if keys is None else keys
        shapes = ((batch, queries, heads[0], dim), (batch, keys, heads[1], dim), (batch, keys, heads[1], dim))
        self.given = [2 * operand(seed + index, rank, shape, dtype) for index, shape in enumerate(shapes)]
        self.dtype, self.causal, self.scale, self.with_lse = dtype, causal, scale, with_lse
        self.d_out = operand(seed + 3, rank, shapes[0], dtype)
        self.d_lse = operand(seed + 4, rank, (batch, heads[0], queries), torch.float32) * with_lse
        leaves = [x.double().clone().requires_grad_() for x in self.given]
        seen = torch.ones(queries, keys, dtype=torch.bool)
        left, right = window[0], 0 if causal else window[1]
        if right >= 0:
            seen = seen.tril(keys - queries + right)
        if left >= 0:
            seen = seen.triu(keys - queries - left)
        self.blind = ~seen.any(1)  # queries that see nothing
        q, k, v = (x.transpose(1, 2) for x in leaves)
        k, v = (x.repeat_interleave(heads[0] // heads[1], 1) for x in (k, v))
        out = F.scaled_dot_product_attention(q[:, :, ~self.blind], k, v, seen[~self.blind], scale=scale)
        factor = dim ** -0.5 if scale is None else scale
        scores = (q @ k.transpose(-1, -2) * factor).masked_fill(~seen, float("-inf"))[:, :, ~self.blind]
        lse = scores.logsumexp(-1)
        loss = (out.transpose(1, 2) * self.d_out[:, ~self.blind].double()).sum() + (lse * self.d_lse[..., ~self.blind].double()).sum()
        self.gradients = torch.autograd.grad(loss, leaves)
        self.out = torch.zeros(shapes[0], dtype=torch.float64)
        self.out[:, ~self.blind] = out.detach().transpose(1, 2)
        self.lse = torch.full((batch, heads[0], queries), float("-inf"), dtype=torch.float64)
        self.lse[..., ~self.blind] = lse.detach()
        self.terms = self._magnitudes(q.detach(), k.detach(), v.detach(), seen, factor, shapes)

    def _magnitudes(self, q, k, v, seen, factor, shapes):
        """Of what is summed up in each gradient."""
        d_out, out = (x.double().transpose(1, 2) for x in (self.d_out, self.out))
        weights = (q @ k.transpose(-1, -2) * factor).masked_fill(~seen, float("-inf")).softmax(-1).nan_to_num(0.0)
        slopes = (d_out.abs() @ v.abs().transpose(-1, -2)) + (out.abs() * d_out.abs()).sum(-1, keepdim=True)
        of_scores = weights * (slopes + self.d_lse.double().abs().unsqueeze(-1)) * abs(factor)
        of_q = of_scores @ k.abs()
        of_k, of_v = (x.unflatten(1, (shapes[1][2], -1)).sum(2) for x in (of_scores.transpose(-1, -2) @ q.abs(),
                                                                          weights.transpose(-1, -2) @ d_out.abs()))
        return [x.transpose(1, 2) for x in (of_q, of_k, of_v)]

    def mine(self, split, device="cpu"):
        """This rank's q, k and v, which ask for gradients."""
        rows = places(self.out.shape[1], split)
        return [x[:, rows].to(device).requires_grad_() for x in self.given]

    def check(self, out, lse, rows=slice(None), parts_rounded=False):
        """`parts_rounded`: weights, or the results of parts of the keys, are rounded to the operands' type on the way."""
        assert out.dtype == self.dtype and out.is_contiguous()
        assert lse.dtype == torch.promote_types(self.dtype, torch.float32), lse.dtype
        unit = UNIT.get(self.dtype, 1e-6)
        wanted, bound = self.out[:, rows], 1.01 * unit * self.out[:, rows].abs() + 2e-5
        if parts_rounded:
            bound = bound + 2 * unit * self.given[2].double().abs().amax()
        worst = ((out.detach().cpu().double() - wanted).abs() / bound).amax() if out.numel() else 0
        assert out.shape == wanted.shape and worst <= 1, (out.shape, wanted.shape, float(worst))
        lse_bound = 1e-4 if parts_rounded else 2e-5
        finite = self.lse[..., rows].isfinite()
        assert torch.equal(lse.cpu().isfinite(), finite)
        assert (lse.detach().cpu().double() - self.lse[..., rows])[finite].abs().le(lse_bound).all()

    def backward(self, out, lse, rows=slice(None)):
        """Runs the backward pass of this rank's results."""
        loss = (out * self.d_out[:, rows].to(out.device)).sum()
        if self.with_lse:
            blind = ~lse.detach().isfinite()
            loss = loss + (lse.masked_fill(blind, 0.0) * self.d_lse[..., rows].to(lse.device).masked_fill(blind, 0.0)).sum()
        loss.backward()

    def check_gradients(self, leaves, rows=slice(None), roundings=1):
        """The result, rounded to its type, goes into every gradient of q and k; and each gradient is rounded."""
        for index, leaf in enumerate(leaves):
            assert leaf.grad.dtype == self.dtype and leaf.grad.device == leaf.device, NAMES[index]
            wanted, terms = self.gradients[index][:, rows], self.terms[index][:, rows]
            if self.dtype in UNIT:
                close(leaf.grad.cpu(), wanted, terms, roundings)
            else:
                assert torch.allclose(leaf.grad.cpu().double(), wanted, rtol=1e-5, atol=1e-5), NAMES[index]


__all__ = ["Whole", "places"]
