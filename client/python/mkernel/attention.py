"""Attention: of each rank alone, and over a sequence that all ranks hold together."""

from typing import TYPE_CHECKING, Any, Optional

from mkernel import _abi
from mkernel._library import lib
from mkernel._operands import Operand
from mkernel._operation import Launch, Operation, OperationHandle, block_size

if TYPE_CHECKING:
    from mkernel.group import Group


class Attention(Operation):
    """Attention of each rank alone: out = softmax(scale q k^T) v per batch entry and head. q, out [batch, sequence, heads,
    head_dim], k, v [batch, keys, kv_heads, head_dim]; each of the kv_heads serves heads / kv_heads heads of q. With `causal` the last
    query sees all keys, the one before it all but the last, and so on; a query that sees none gets zeros. lse, if given, gets the
    logarithm of the sum of each query's exponentials, float32 [batch, heads, sequence]. executor="cuda" takes head_dim 64 and
    128."""

    what = "attention"
    Arguments = _abi.AttentionArguments
    _launch = lib.mk_ring_attention_launch
    _enqueue = lib.mk_ring_attention_enqueue

    def __init__(self, group: "Group", handle: OperationHandle, shape: _abi.AttentionShape, dtype: str, executor: str) -> None:
        super().__init__(group, handle, dtype, executor)
        queries, keys = self._lengths(shape)
        of_q = (shape.batch, queries, shape.heads, shape.head_dim)
        of_k = (shape.batch, keys, shape.kv_heads, shape.head_dim)
        self.q, self.k, self.v = Operand("q", dtype, of_q), Operand("k", dtype, of_k), Operand("v", dtype, of_k)
        self.out = Operand("out", dtype, of_q, written=True)
        self.lse = Operand("lse", "f32", (shape.batch, shape.heads, queries), written=True)

    def _lengths(self, shape: _abi.AttentionShape) -> "tuple[int, int]":
        """Positions of q, and of k and v, on this rank."""
        return shape.sequence, shape.keys or shape.sequence

    def bind(self, q: Any, k: Any, v: Any, out: Any, *, lse: Any = None, deadline: Optional[float] = None,
             compute_threads: int = 0) -> Launch:
        """As Gemm.bind()."""
        operands = [(self.q, q), (self.k, k), (self.v, v), (self.out, out)]
        if lse is not None:
            operands.append((self.lse, lse))
        return self._bind(self.Arguments(), operands, deadline, compute_threads)


class RingAttention(Attention):
    """Attention over a sequence that all ranks hold together: q, out [batch, positions, heads, head_dim], k, v [batch, positions,
    kv_heads, head_dim], lse as Attention's. Full: `positions` is part `rank` of block_range(sequence, world_size, .). Causal: parts
    `rank` and 2 * world_size - 1 - rank of block_range(sequence, 2 * world_size, .), in that order (zigzag)."""

    what = "ring_attention"

    def _lengths(self, shape: _abi.AttentionShape) -> "tuple[int, int]":
        world, rank = self._group.world_size, self._group.rank
        parts, held = (2 * world, (rank, 2 * world - 1 - rank)) if shape.causal else (world, (rank,))
        self.positions = sum(block_size(shape.sequence, parts, part) for part in held)
        return self.positions, self.positions
