"""What a call of an attention operator will do, decided from shapes, strides and types alone: its operation, who holds which
positions, and what is copied."""

import dataclasses
import math
from typing import Mapping, NamedTuple, Optional

import torch

from mkernel.errors import InvalidArgument
from mkernel.operations import block_range, block_size
from mkernel.torch._decide import DTYPES, Refused, check_device, executor_of
from mkernel.torch._groups import Membership
from mkernel.torch._options import Options
from mkernel.torch._plans import AttentionKey

ALONE, RING = "attention", "ring_attention"
BACKWARD = {ALONE: "attention_backward", RING: "ring_attention_backward"}
MOST_HEAD_DIM = 4096  # of the cpu executor
# Of the cuda executor; with a window it takes so many batch entries.
CUDA_HEAD_DIMS, MOST_WINDOW_BATCH = (64, 128), 1024
# Of ring attention on the cuda executor.
MOST_KV_COLUMNS, MOST_RANKS, MOST_NODES, MOST_NODE_RANKS = 8192, 64, 16, 16


class Rows(NamedTuple):
    """Rows row .. row + end - begin of a tensor stand at the positions begin..end of the sequence."""

    row: int
    begin: int
    end: int

    @property
    def rows(self) -> slice:
        return slice(self.row, self.row + self.end - self.begin)


Operands = Mapping[str, torch.Tensor]  # by the fields of the operation's arguments: q, k, v, and of a backward pass out, d_out, lse


class Call(NamedTuple):
    """What a call says beside its operands."""

    causal: bool
    scale: Optional[float]
    # Of ring attention.
    sequence: int = 0  # 0: every rank holds the same number of positions
    zigzag: bool = True
    # Of attention of a rank alone: keys before and behind a query's own that it sees; -1: all.
    window_left: int = -1
    window_right: int = -1

    def factor(self, q: torch.Tensor) -> float:
        return q.shape[-1] ** -0.5 if self.scale is None else self.scale

    @property
    def has_window(self) -> bool:
        return self.window_left >= 0 or (self.window_right >= 0 and not self.causal)

    @property
    def limits(self) -> "tuple[int, int]":
        """(left, right) of what queries see, with the end that a causal mask sets."""
        return self.window_left, 0 if self.causal else self.window_right

    def sees(self, queries: Rows, keys: Rows) -> bool:
        """Whether one of the queries sees one of the keys."""
        left, right = self.limits
        return (right < 0 or keys.begin < queries.end + right) and (left < 0 or keys.end > queries.begin - left)

    def hidden(self, queries: Rows, keys: Rows, device: torch.device) -> Optional[torch.Tensor]:
        """[queries, keys]: where a key is hidden; None: nowhere."""
        left, right = self.limits
        after = right >= 0 and keys.end > queries.begin + right + 1
        before = left >= 0 and keys.begin < queries.end - 1 - left
        if not after and not before:
            return None
        at_q, at_k = (torch.arange(x.begin, x.end, device=device) for x in (queries, keys))
        ahead = at_k - at_q.unsqueeze(-1)
        if not before:
            return ahead > right
        return (ahead < -left) | (ahead > right) if after else ahead < -left


@dataclasses.dataclass(frozen=True)
class AttentionDecision:
    key: Optional[AttentionKey]  # None: the result has no elements, or there is nothing to attend to
    copies: "tuple[str, ...]"  # what is copied and why; details in brackets, which counters() leave out


def check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: Call) -> None:
    """Raises what is wrong with shapes, types and devices; also for fake tensors."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() != 4:
            raise InvalidArgument(f"{name} has {tensor.dim()} dimensions, needed are 4: [batch, sequence, heads, head_dim]")
        if tensor.dtype != q.dtype or not tensor.dtype.is_floating_point:
            raise InvalidArgument(f"{name} has dtype {tensor.dtype} and q {q.dtype}: they must be the same floating-point type")
        if tensor.device != q.device:
            raise InvalidArgument(f"{name} is on {tensor.device} and q on {q.device}: they must be on the same device")
    if k.shape != v.shape:
        raise InvalidArgument(f"k and v have shapes {tuple(k.shape)} and {tuple(v.shape)}: they must be the same")
    if (q.shape[0], q.shape[3]) != (k.shape[0], k.shape[3]):
        raise InvalidArgument(f"q and k have shapes {tuple(q.shape)} and {tuple(k.shape)}: they differ in batch or head_dim")
    heads, kv_heads = q.shape[2], k.shape[2]
    if heads % max(kv_heads, 1) != 0 or (kv_heads == 0 < heads):
        raise InvalidArgument(f"q has {heads} heads, and k has {kv_heads}: the first must be a multiple of the second")
    if q.shape[3] == 0:
        raise InvalidArgument(f"q of shape {tuple(q.shape)} has head_dim 0, needed is at least 1")
    if call.scale is not None and not math.isfinite(call.scale):
        raise InvalidArgument(f"scale = {call.scale} is not finite")
    for name, keys in (("window_left", call.window_left), ("window_right", call.window_right)):
        if keys < -1:
            raise InvalidArgument(f"{name} = {keys} is not at least 0, or -1 for all keys")
    if call.causal and call.window_right > 0:
        raise InvalidArgument(f"window_right = {call.window_right} is not -1 or 0 with causal")


def check_ring(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: Call, world: int, rank: int) -> None:
    """check(), and whether this rank holds its part of the sequence."""
    check(q, k, v, call)
    if q.shape[1] != k.shape[1]:
        raise InvalidArgument(f"q has {q.shape[1]} positions and k {k.shape[1]}: a rank holds the same positions of both")
    if call.sequence < 0:
        raise InvalidArgument(f"sequence = {call.sequence} is not at least 0")
    if call.sequence:
        parts, mine = parts_of(call, world, rank)
        held = sum(block_size(call.sequence, parts, part) for part in mine)
        if q.shape[1] != held:
            raise InvalidArgument(
                f"q of shape {tuple(q.shape)} has {q.shape[1]} positions; of sequence = {call.sequence} rank {rank} of {world} holds "
                f"{held}"
            )


def check_backward(d_out: Optional[torch.Tensor], d_lse: Optional[torch.Tensor], q: torch.Tensor, out: torch.Tensor,
                   lse: torch.Tensor) -> None:
    """Raises what is wrong with the operands that the forward pass has not seen; also for fake tensors."""
    lse_shape = (q.shape[0], q.shape[2], q.shape[1])
    for name, tensor, shape in (("out", out, q.shape), ("d_out", d_out, q.shape), ("lse", lse, lse_shape), ("d_lse", d_lse, lse_shape)):
        if tensor is not None and tensor.shape != shape:
            raise InvalidArgument(f"{name} has shape {tuple(tensor.shape)}, needed is {tuple(shape)} with q of shape {tuple(q.shape)}")
        if tensor is not None and tensor.device != q.device:
            raise InvalidArgument(f"{name} is on {tensor.device} and q on {q.device}: they must be on the same device")


def parts_of(call: Call, world: int, rank: int) -> "tuple[int, tuple[int, ...]]":
    """(into how many parts the sequence is split, those of `rank` in the order of its rows)."""
    return (2 * world, (rank, 2 * world - 1 - rank)) if call.causal and call.zigzag else (world, (rank,))


def held_rows(call: Call, sequence: int, world: int, rank: int) -> "list[Rows]":
    """Where the rows of `rank` stand. As held_positions() of kernels/plan/positions.h, which has no contiguous parts for causal
    attention."""
    parts, mine = parts_of(call, world, rank)
    held: "list[Rows]" = []
    for part in mine:
        begin, end = block_range(sequence, parts, part)
        held.append(Rows(held[-1].rows.stop if held else 0, begin, end))
    return held


def rows_alone(call: Call, queries: int, keys: int) -> "tuple[list[Rows], list[Rows]]":
    """Of queries and of keys. With a mask the last query stands where the last key does. Without a window two ranges are the same or
    do not overlap."""
    if call.has_window:
        return [Rows(0, keys - queries, keys)], [Rows(0, 0, keys)]
    if not call.causal:
        return [Rows(0, 0, queries)], [Rows(0, 0, keys)]
    before = max(keys - queries, 0)
    return [Rows(max(queries - keys, 0), before, keys)], [Rows(0, 0, before), Rows(before, before, keys)]


def decide(kind: str, membership: Membership, operands: Operands, call: Call, options: Options) -> AttentionDecision:
    """`kind`: ALONE, RING, or the BACKWARD of one. Errors: InvalidArgument (operands that fit no attention), Refused (what mkernel
    does not have)."""
    key = (kind, call, options.sm_margin, *((x.shape, x.stride(), x.dtype, x.device) for x in operands.values()))
    found: Optional[AttentionDecision] = membership.decisions.get(key)
    if found is None:
        if len(membership.decisions) >= 4096:
            membership.decisions.clear()  # only this rank's memory of what it would decide again
        q, k, v = (operands[name] for name in ("q", "k", "v"))
        if is_ring(kind):
            check_ring(q, k, v, call, membership.world_size, membership.rank)
        else:
            check(q, k, v, call)
        check_served(kind, membership, operands, call)
        found = membership.decisions[key] = _decide(kind, membership, operands, call, options)
    return found


def is_ring(kind: str) -> bool:
    return kind in (RING, BACKWARD[RING])


def check_served(kind: str, membership: Membership, operands: Operands, call: Call) -> None:
    """Raises Refused for what mkernel does not have."""
    q = operands["q"]
    if q.dtype not in DTYPES:
        raise Refused(f"dtype {q.dtype}", f"q has dtype {q.dtype}; mkernel has torch.bfloat16 and torch.float16")
    check_device("q", q.device, membership)
    if call.scale is not None and call.scale <= 0:
        raise Refused("scale is not above 0", f"scale = {call.scale}; mkernel takes scales above 0")
    head_dim = q.shape[3]
    if q.is_cuda and head_dim not in CUDA_HEAD_DIMS:
        raise Refused("head_dim is not 64 or 128", f"head_dim = {head_dim}; the cuda executor takes 64 and 128")
    if head_dim > MOST_HEAD_DIM:
        raise Refused(f"head_dim is above {MOST_HEAD_DIM}", f"head_dim = {head_dim}; the cpu executor takes at most {MOST_HEAD_DIM}")
    for name, wanted in (("out", q.dtype), ("d_out", q.dtype), ("lse", torch.float32)):
        if name in operands and operands[name].dtype != wanted:
            raise Refused(f"dtype of {name}", f"{name} has dtype {operands[name].dtype}; mkernel takes {wanted} with q of {q.dtype}")
    if q.is_cuda and call.has_window and q.shape[0] > MOST_WINDOW_BATCH:
        raise Refused(f"a window of more than {MOST_WINDOW_BATCH} batch entries",
                      f"q has {q.shape[0]} batch entries; with a window the cuda executor takes at most {MOST_WINDOW_BATCH}")
    if not is_ring(kind):
        return
    if call.causal and not call.zigzag and membership.world_size > 1:
        raise Refused("causal over contiguous parts", "causal, zigzag = False: mkernel has causal sequences split zigzag alone")
    if q.is_cuda:
        _check_ring_on_gpu(membership, operands["k"].shape[2] * head_dim)


def _check_ring_on_gpu(membership: Membership, columns: int) -> None:
    nodes, world = membership.group.node_count, membership.world_size
    for what, size, most in (("ranks", world, MOST_RANKS), ("nodes", nodes, MOST_NODES), ("ranks of a node", world // nodes, MOST_NODE_RANKS)):
        if size > most:
            raise Refused(f"more than {most} {what}", f"the group has {size} {what}; ring attention of the cuda executor takes at most {most}")
    if columns > MOST_KV_COLUMNS:
        raise Refused(f"kv_heads * head_dim is above {MOST_KV_COLUMNS}",
                      f"k has kv_heads * head_dim = {columns}; ring attention of the cuda executor takes at most {MOST_KV_COLUMNS}")


def _decide(kind: str, membership: Membership, operands: Operands, call: Call, options: Options) -> AttentionDecision:
    q, ring = operands["q"], is_ring(kind)
    batch, queries, heads, head_dim = q.shape
    keys, kv_heads = operands["k"].shape[1:3]
    sequence = (call.sequence or queries * membership.world_size) if ring else queries
    copies = tuple(f"{name}: it is not dense (strides {x.stride()})" for name, x in operands.items() if not x.is_contiguous())
    if 0 in (batch, heads, sequence) or (not ring and keys == 0):
        return AttentionDecision(None, ())
    executor, sms = executor_of(q.device, options)
    key = AttentionKey(kind, batch, sequence, heads, kv_heads, head_dim, call.causal, call.scale or 0.0, DTYPES[q.dtype], executor,
                       sms, None if ring or keys == queries else keys, window=call.limits if call.has_window else None)
    return AttentionDecision(key, copies)
