"""Attention in PyTorch, forward and backward, of what mkernel does not have.

The backward pass is exact, and has the scores of one tile of queries and keys at a time. It is not fast."""

from typing import Any, Iterator, Optional, Sequence

import torch

from mkernel.torch import _run
from mkernel.torch._attention_decide import Call, Rows, held_rows, rows_alone
from mkernel.torch._groups import resolve

_TILE_ELEMENTS = 1 << 24  # scores of all heads that the backward pass has at a time: 64 MiB in fp32
_FEWEST_TILE_ROWS = 64

Result = tuple[torch.Tensor, torch.Tensor]
Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Of sums, and of the logarithms of sums of exponentials."""
    return torch.promote_types(dtype, torch.float32)


# ---- forward


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: Call) -> Result:
    """torch.ops.mkernel.attention in PyTorch."""
    merged = _Merged(q, call)
    queries, keys = rows_alone(call, q.shape[1], k.shape[1])
    merged.add(queries, k, v, keys)
    return merged.result()


def ring_attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: Call, group_name: str) -> Result:
    """torch.ops.mkernel.ring_attention in PyTorch: keys and values are passed round in the process group."""
    group = resolve(group_name)
    world, rank = group.size(), group.rank()
    sequence = call.sequence or q.shape[1] * world
    merged, mine = _Merged(q, call), held_rows(call, sequence, world, rank)
    kv = torch.stack((k, v), 2).transpose(0, 1)  # [positions, batch, 2, kv_heads, head_dim]
    for step in range(world):
        if step > 0:
            kv = _run.pass_on(kv, _count(held_rows(call, sequence, world, (rank - step) % world)), world, rank, group_name)
        k, v = kv.transpose(0, 1).unbind(2)
        merged.add(mine, k, v, held_rows(call, sequence, world, (rank - step) % world))
    return merged.result()


class _Merged:
    """Attention of all queries to the keys that were added so far. Without a window, ranges of queries and keys are the same or do not
    overlap."""

    def __init__(self, q: torch.Tensor, call: Call) -> None:
        self._q, self._call, self._scale = q.transpose(1, 2), call, call.factor(q)
        dtype = sum_dtype(q.dtype)
        self._out = self._q.new_zeros(self._q.shape, dtype=dtype)
        self._lse = self._q.new_full(self._q.shape[:3], float("-inf"), dtype=dtype)

    def add(self, queries: "Sequence[Rows]", k: torch.Tensor, v: torch.Tensor, keys: "Sequence[Rows]") -> None:
        heads_per_key = self._q.shape[1] // max(k.shape[2], 1)
        k, v = (x.transpose(1, 2).repeat_interleave(heads_per_key, 1) for x in (k, v))
        call = self._call
        if call.has_window:
            most = _tile_rows(self._q.shape[0] * self._q.shape[1])
            queries, keys = (list(_tiles(x, most)) for x in (queries, keys))
        for some in queries:
            for others in keys:
                empty = some.begin == some.end or others.begin == others.end or self._q.numel() == 0
                if empty or not call.sees(some, others):
                    continue
                operands = (self._q[:, :, some.rows], k[:, :, others.rows], v[:, :, others.rows])
                found = None
                if not call.has_window:
                    found = _sdpa(*operands, call.causal and others.begin == some.begin, self._scale)
                if found is None:
                    found = _products(*operands, call.hidden(some, others, k.device), self._scale)
                self._merge(some.rows, *found)

    def _merge(self, rows: slice, out: torch.Tensor, lse: torch.Tensor) -> None:
        before = self._lse[:, :, rows]
        after = torch.logaddexp(before, lse)
        kept, added = ((x - _finite(after)).exp().unsqueeze(-1) for x in (before, lse))
        self._out[:, :, rows] = self._out[:, :, rows] * kept + out * added
        self._lse[:, :, rows] = after

    def result(self) -> Result:
        return self._out.transpose(1, 2).to(self._q.dtype).contiguous(), self._lse


def _sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> Optional[Result]:
    """Of [batch, heads, sequence, head_dim], by what this PyTorch has for the device that also tells the log-sum-exp; None: it has
    nothing. `causal`: there are as many queries as keys."""
    queries, head_dim = q.shape[2:]
    found: Any
    if causal and scale <= 0:  # PyTorch's own multiplies what masks scores by the scale, too
        return None
    if q.device.type == "cpu":
        found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale)
        return found[0], found[1]
    if q.dtype == torch.float64 or q.device.type != "cuda":
        return None
    q, k, v = (torch.nn.functional.pad(x, (0, -head_dim % 8)) for x in (q, k, v))
    if q.dtype in (torch.bfloat16, torch.float16) and head_dim <= 256:
        found = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, scale=scale)
    else:
        found = torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, causal, scale=scale)
    return found[0][..., :head_dim], found[1][..., :queries]  # the second may have rows for whole tiles


def _products(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, hidden: Optional[torch.Tensor], scale: float) -> Result:
    """`hidden`: Call.hidden(). A query that sees nothing has zeros, and an lse of -inf."""
    q, k, v = (x.to(sum_dtype(x.dtype)) for x in (q, k, v))
    scores = q @ k.transpose(-1, -2) * scale
    if hidden is not None:
        scores = scores.masked_fill(hidden, float("-inf"))
    lse = scores.logsumexp(-1)
    return (scores - _finite(lse).unsqueeze(-1)).exp() @ v, lse


def _finite(lse: torch.Tensor) -> torch.Tensor:
    """To be subtracted from what may be -inf itself."""
    return lse.masked_fill(lse == float("-inf"), 0.0)


# ---- backward


class Saved:
    """What the backward pass takes from the forward pass, and the gradients of its results. None: the loss does not depend on it."""

    def __init__(self, q: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, d_out: Optional[torch.Tensor],
                 d_lse: Optional[torch.Tensor]) -> None:
        dtype = sum_dtype(q.dtype)
        self.q, self.lse = q, lse
        self.d_out = torch.zeros_like(out) if d_out is None else d_out
        # What the derivative of softmax takes off every score's gradient, [batch, heads, queries].
        self.delta = (out.to(dtype) * self.d_out.to(dtype)).sum(-1).transpose(1, 2)
        if d_lse is not None:
            self.delta = self.delta - d_lse


def gradients(saved: Saved, k: torch.Tensor, v: torch.Tensor, call: Call) -> Gradients:
    """Of q, k and v, in their type."""
    of_q, of_k, of_v = sums_of_gradients(saved, k, v, call)
    return of_q.to(k.dtype), of_k.to(k.dtype), of_v.to(k.dtype)


def sums_of_gradients(saved: Saved, k: torch.Tensor, v: torch.Tensor, call: Call) -> Gradients:
    """The same, in the type of sums."""
    queries, keys = rows_alone(call, saved.q.shape[1], k.shape[1])
    return _tiled_gradients(saved, queries, k, v, keys, call)


def ring_gradients(saved: Saved, k: torch.Tensor, v: torch.Tensor, call: Call, group_name: str) -> Gradients:
    """As gradients(). Keys and values are gathered in the process group, and their gradients summed over its ranks."""
    group = resolve(group_name)
    world, rank, positions = group.size(), group.rank(), k.shape[1]
    sequence = call.sequence or positions * world
    held = [held_rows(call, sequence, world, other) for other in range(world)]
    most = max(map(_count, held))  # ranks with fewer positions pad theirs
    keys = [Rows(other * most + rows.row, rows.begin, rows.end) for other in range(world) for rows in held[other]]
    kv = torch.stack((k, v)).movedim(2, 0)  # [positions, 2, batch, kv_heads, head_dim]
    kv = _run.gather(torch.cat((kv, kv.new_zeros(most - positions, *kv.shape[1:]))), world, group_name).movedim(0, 2)
    of_q, *of_kv = _tiled_gradients(saved, held[rank], kv[0], kv[1], keys, call)
    of_k, of_v = _run.scatter(torch.stack(of_kv).movedim(2, 0), "sum", world, group_name)[:positions].movedim(0, 2)
    return of_q.to(k.dtype), of_k.to(k.dtype).contiguous(), of_v.to(k.dtype).contiguous()


def _tiled_gradients(saved: Saved, queries: "Sequence[Rows]", k: torch.Tensor, v: torch.Tensor, keys: "Sequence[Rows]",
                     call: Call) -> Gradients:
    """In the type of sums. The weights of one tile of queries and keys are computed again from the log-sum-exp at a time."""
    q, dtype, scale = saved.q, sum_dtype(saved.q.dtype), call.factor(saved.q)
    batch, _, heads, _ = q.shape
    shape = (k.shape[2], heads // max(k.shape[2], 1))  # the heads of q by the head of k that they share
    tile = _tile_rows(batch * heads)
    of_q, of_k, of_v = (torch.zeros(x.shape, dtype=dtype, device=q.device) for x in (q, k, v))
    q_by_key, d_out, to_q = (x.unflatten(2, shape) for x in (q, saved.d_out, of_q))  # [batch, queries, kv_heads, heads of each, head_dim]
    lse, delta = (x.unflatten(1, shape) for x in (saved.lse, saved.delta))
    for some, others in ((a, b) for a in _tiles(queries, tile) for b in _tiles(keys, tile)):
        if not call.sees(some, others):
            continue
        mine, theirs = some.rows, others.rows
        tile_q, tile_d, tile_k, tile_v = (x.to(dtype) for x in (q_by_key[:, mine], d_out[:, mine], k[:, theirs], v[:, theirs]))
        scores = torch.einsum("bqhgd,bkhd->bhgqk", tile_q, tile_k) * scale
        weights = (scores - lse[..., mine].unsqueeze(-1)).exp()
        hidden = call.hidden(some, others, q.device)
        if hidden is not None:
            weights = weights.masked_fill(hidden, 0.0)
        of_v[:, theirs] += torch.einsum("bhgqk,bqhgd->bkhd", weights, tile_d)
        of_scores = weights * (torch.einsum("bqhgd,bkhd->bhgqk", tile_d, tile_v) - delta[..., mine].unsqueeze(-1)) * scale
        to_q[:, mine] += torch.einsum("bhgqk,bkhd->bqhgd", of_scores, tile_k)
        of_k[:, theirs] += torch.einsum("bhgqk,bqhgd->bkhd", of_scores, tile_q)
    return of_q, of_k, of_v


def _tile_rows(heads: int) -> int:
    """Of a tile of queries and keys, for so many heads of all batch entries."""
    return max(_FEWEST_TILE_ROWS, int((_TILE_ELEMENTS / max(heads, 1)) ** 0.5))


def _tiles(ranges: "Sequence[Rows]", most: int) -> "Iterator[Rows]":
    for rows in ranges:
        for begin in range(rows.begin, rows.end, most):
            yield Rows(rows.row + begin - rows.begin, begin, min(begin + most, rows.end))


def _count(ranges: "Sequence[Rows]") -> int:
    return sum(rows.end - rows.begin for rows in ranges)
