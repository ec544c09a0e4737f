"""Attention: of each rank alone, and over a sequence that all ranks hold together."""

from typing import TYPE_CHECKING, Any, Optional

from mkernel import _abi
from mkernel._arguments import Seconds
from mkernel._library import lib
from mkernel._operands import Operand
from mkernel._operation import Launch, Operation, OperationHandle, block_size
from mkernel.errors import InvalidArgument

if TYPE_CHECKING:
    from mkernel.group import Group


def _held(group: "Group", shape: _abi.AttentionShape) -> int:
    """Positions of a sequence of all ranks that this one holds."""
    world, rank = group.world_size, group.rank
    parts, held = (2 * world, (rank, 2 * world - 1 - rank)) if shape.causal else (world, (rank,))
    return sum(block_size(shape.sequence, parts, part) for part in held)


def _lengths_of(operation: "Attention | AttentionBackward", max_sequences: int, **given: Any) -> "list[tuple[Operand, Any]]":
    """Those of a launch, which are needed with `max_sequences`, and only then."""
    for field, lengths in given.items():
        if field not in operation.lengths:
            if lengths is not None:
                raise InvalidArgument(f"{operation.what}: {field} must be None: keys have the lengths of the queries")
        elif (lengths is None) != (not max_sequences):
            needed = f"is needed with max_sequences = {max_sequences}" if lengths is None else "needs max_sequences"
            raise InvalidArgument(f"{operation.what}: {field} {needed}")
    return [(Operand(field, "i32", (max_sequences + 1,)), lengths) for field, lengths in given.items() if lengths is not None]


class Attention(Operation):
    """Attention of each rank alone: out = softmax(scale q k^T) v per batch entry and head. q, out [batch, sequence, heads,
    head_dim], k, v [batch, keys, kv_heads, head_dim]; each of the kv_heads serves heads / kv_heads heads of q. With `causal` the last
    query sees all keys, the one before it all but the last, and so on; a query that sees none gets zeros. lse, if given, gets the
    logarithm of the sum of each query's exponentials, float32 [batch, heads, sequence]. executor="cuda" takes head_dim 64 and
    128.

    Planned with `max_sequences`, it takes sequences of different lengths as flash_attn_varlen_func() does: q, out [sequence, heads,
    head_dim], k, v [keys, kv_heads, head_dim], lse [heads, sequence], and cu_seqlens_q, cu_seqlens_k [max_sequences + 1] int32 on the
    executor's device. Sequence s has rows cu_seqlens_q[s] .. cu_seqlens_q[s + 1] - 1 of q and likewise of k and v; it may have none.
    Masks are aligned per sequence. With fewer sequences the last entry is repeated; rows behind it are not written. A launch is
    refused when the first entry is not 0, or an entry is below the one before or beyond the rows (InvalidArgument names it). out
    stays as it was, and the group goes on. A launch that was queued on a stream is refused on the GPU, and status() tells it. The
    lengths are read while the launch runs, also by every replay of a graph."""

    _concerns_others = False
    what = "attention"
    lengths = ("cu_seqlens_q", "cu_seqlens_k")  # that packed sequences have
    Arguments = _abi.AttentionArguments
    _launch = lib.mk_ring_attention_launch
    _enqueue = lib.mk_ring_attention_enqueue

    def __init__(self, group: "Group", handle: OperationHandle, shape: _abi.AttentionShape, dtype: str, executor: str) -> None:
        super().__init__(group, handle, dtype, executor)
        queries, keys = self._lengths(shape)
        self._max_sequences = shape.max_sequences
        batch = () if shape.max_sequences else (shape.batch,)
        of_q = (*batch, queries, shape.heads, shape.head_dim)
        of_k = (*batch, keys, shape.kv_heads, shape.head_dim)
        self.q, self.k, self.v = Operand("q", dtype, of_q), Operand("k", dtype, of_k), Operand("v", dtype, of_k)
        self.out = Operand("out", dtype, of_q, written=True)
        self.lse = Operand("lse", "f32", (*batch, shape.heads, queries), written=True)

    def _lengths(self, shape: _abi.AttentionShape) -> "tuple[int, int]":
        """Positions of q, and of k and v, on this rank."""
        return shape.sequence, shape.keys or shape.sequence

    def bind(self, q: Any, k: Any, v: Any, out: Any, *, lse: Any = None, cu_seqlens_q: Any = None, cu_seqlens_k: Any = None,
             deadline: Optional[Seconds] = None, compute_threads: int = 0) -> Launch:
        """As Gemm.bind(). The lengths are needed with `max_sequences`, and only then."""
        operands = [(self.q, q), (self.k, k), (self.v, v), (self.out, out)]
        if lse is not None:
            operands.append((self.lse, lse))
        operands += _lengths_of(self, self._max_sequences, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
        return self._bind(self.Arguments(), operands, deadline, compute_threads)


class AttentionBackward(Operation):
    """The backward pass of Attention, with its shapes: from q, k, v, out and lse of the forward pass and d_out, the gradient of out,
    the gradients d_q, d_k and d_v. The same bits every run, also for any number of multiprocessors. executor="cuda" takes head_dim 64
    and 128, and keeps float32 sums as large as q in memory of its own.

    Planned with `max_sequences`, it takes packed sequences as Attention does, with cu_seqlens_q and cu_seqlens_k, and refuses the same
    lengths. Keys that no query sees get zeros; rows behind the last sequence are not written. executor="cuda" keeps sums of up to 64
    rows more for each of `max_sequences`."""

    _concerns_others = False
    what = "attention_backward"
    lengths = ("cu_seqlens_q", "cu_seqlens_k")
    Arguments = _abi.AttentionBackwardArguments
    _launch = lib.mk_attention_backward_launch
    _enqueue = lib.mk_attention_backward_enqueue

    def __init__(self, group: "Group", handle: OperationHandle, shape: _abi.AttentionShape, dtype: str, executor: str) -> None:
        super().__init__(group, handle, dtype, executor)
        queries, keys = self._lengths(shape)
        self._max_sequences = shape.max_sequences
        batch = () if shape.max_sequences else (shape.batch,)
        of_q = (*batch, queries, shape.heads, shape.head_dim)
        of_k = (*batch, keys, shape.kv_heads, shape.head_dim)
        self.q, self.k, self.v = Operand("q", dtype, of_q), Operand("k", dtype, of_k), Operand("v", dtype, of_k)
        self.out, self.d_out = Operand("out", dtype, of_q), Operand("d_out", dtype, of_q)
        self.lse = Operand("lse", "f32", (*batch, shape.heads, queries))
        self.d_q = Operand("d_q", dtype, of_q, written=True)
        self.d_k, self.d_v = Operand("d_k", dtype, of_k, written=True), Operand("d_v", dtype, of_k, written=True)

    def _lengths(self, shape: _abi.AttentionShape) -> "tuple[int, int]":
        """Positions of q, and of k and v, on this rank."""
        return shape.sequence, shape.keys or shape.sequence

    def bind(self, q: Any, k: Any, v: Any, out: Any, d_out: Any, lse: Any, d_q: Any, d_k: Any, d_v: Any, *, cu_seqlens_q: Any = None,
             cu_seqlens_k: Any = None, deadline: Optional[Seconds] = None, compute_threads: int = 0) -> Launch:
        """As Gemm.bind(). The lengths are needed with `max_sequences`, and only then."""
        operands = [(self.q, q), (self.k, k), (self.v, v), (self.out, out), (self.d_out, d_out), (self.lse, lse),
                    (self.d_q, d_q), (self.d_k, d_k), (self.d_v, d_v)]
        operands += _lengths_of(self, self._max_sequences, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
        return self._bind(self.Arguments(), operands, deadline, compute_threads)


class RingAttention(Attention):
    """Attention over a sequence that all ranks hold together: q, out [batch, positions, heads, head_dim], k, v [batch, positions,
    kv_heads, head_dim], lse as Attention's. Full: `positions` is part `rank` of block_range(sequence, world_size, .). Causal: parts
    `rank` and 2 * world_size - 1 - rank of block_range(sequence, 2 * world_size, .), in that order (zigzag).

    Planned with `max_sequences`, it takes sequences of different lengths: q, out [positions, heads, head_dim], k, v [positions,
    kv_heads, head_dim], lse [heads, positions], where `positions` is the same on every rank, and so is cu_seqlens_q
    [max_sequences + 1]. Sequence s has rows cu_seqlens_q[s] .. cu_seqlens_q[s + 1] - 1 on every rank, which are its parts as above;
    causal, their number is even. All else is as of Attention: a rank that is refused passes on its keys and values, so the others
    go on. Ranks that are given other lengths than the others get other results."""

    _concerns_others = True
    what = "ring_attention"
    lengths = ("cu_seqlens_q",)

    def _lengths(self, shape: _abi.AttentionShape) -> "tuple[int, int]":
        self.positions = shape.sequence // self._group.world_size if shape.max_sequences else _held(self._group, shape)
        return self.positions, self.positions


class RingAttentionBackward(AttentionBackward):
    """The backward pass of RingAttention: from what this rank gave it and got, and d_out of its own positions, the gradients d_q, d_k
    and d_v of its own positions, sums over all ranks. The same bits every run."""

    _concerns_others = True
    what = "ring_attention_backward"

    def _lengths(self, shape: _abi.AttentionShape) -> "tuple[int, int]":
        self.positions = _held(self._group, shape)
        return self.positions, self.positions
