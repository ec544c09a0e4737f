"""What a call of a MoE operator will do, decided from shapes, strides and types alone: its operation, and what is copied."""

import dataclasses
from typing import NamedTuple, Optional

import torch

from mkernel.errors import InvalidArgument
from mkernel.operations import block_size
from mkernel.torch._decide import DTYPES, Refused, check_device, executor_of
from mkernel.torch._groups import Membership
from mkernel.torch._options import Options, bucket_of
from mkernel.torch._plans import MoeKey


# Of the cuda executor.
MOST_TOPK, MOST_EXPERTS = 16, 1024


class MoeOperands(NamedTuple):
    """Of one call. Without w2 an expert has one product, and w1 is called w."""

    x: torch.Tensor
    topk_ids: torch.Tensor
    topk_weights: torch.Tensor
    w1: torch.Tensor
    w1_up: Optional[torch.Tensor]
    w2: Optional[torch.Tensor]

    def weights(self) -> "dict[str, torch.Tensor]":
        """The matrices of the experts by their names in the operator's schema."""
        if self.w2 is None:
            return {"w": self.w1}
        halves = {"w1": self.w1} if self.w1_up is None else {"w1": self.w1, "w1_up": self.w1_up}
        return {**halves, "w2": self.w2}

    def columns(self) -> int:
        """Of the result."""
        return (self.w1 if self.w2 is None else self.w2).shape[2]


class MoeLimits(NamedTuple):
    """What a call says beside its operands; the same on every rank."""

    num_experts: int
    max_tokens: int  # 0: the number of tokens, which every rank has then
    capacity: int
    weights_on_input: bool = False


@dataclasses.dataclass(frozen=True)
class MoeDecision:
    """`copied`: operands that are made dense, or of another type."""

    key: Optional[MoeKey]  # None: no rank has a token
    tokens: int
    copied: "frozenset[str]"
    copies: "tuple[str, ...]"  # what is copied and why; details in brackets, which counters() leave out


def check(operands: MoeOperands, num_experts: int, world: int, rank: int) -> None:
    """Raises what is wrong with shapes and devices; also for fake tensors."""
    x, ids, weights = operands[:3]
    for name, tensor in (("topk_ids", ids), ("topk_weights", weights), *operands.weights().items()):
        if tensor.device != x.device:
            raise InvalidArgument(f"{name} is on {tensor.device} and x on {x.device}: they must be on the same device")
    for name, tensor in (("x", x), ("topk_ids", ids), ("topk_weights", weights)):
        _check_dimensions(name, tensor, 2)
    if ids.shape != weights.shape:
        raise InvalidArgument(f"topk_ids and topk_weights have shapes {tuple(ids.shape)} and {tuple(weights.shape)}, which differ")
    if ids.shape[0] != x.shape[0]:
        raise InvalidArgument(f"x of shape {tuple(x.shape)} has {x.shape[0]} tokens, and topk_ids has {ids.shape[0]}")
    mine = block_size(num_experts, world, rank)
    for name, w in operands.weights().items():
        _check_dimensions(name, w, 3)
        if w.shape[0] != mine:
            raise InvalidArgument(
                f"{name} of shape {tuple(w.shape)} has {w.shape[0]} experts; of num_experts = {num_experts} rank {rank} of {world} "
                f"has {mine}"
            )
    first = "w" if operands.w2 is None else "w1"
    if operands.w1.shape[1] != x.shape[1]:
        shapes = f"{tuple(x.shape)} and {tuple(operands.w1.shape)}"
        raise InvalidArgument(f"x and {first} have shapes {shapes}: the last of x is not the second of {first}")
    if operands.w2 is not None:
        _check_halves(operands, operands.w2)


def _check_halves(operands: MoeOperands, w2: torch.Tensor) -> None:
    w1, up, inner = operands.w1, operands.w1_up, w2.shape[1]
    if inner == 0:
        raise InvalidArgument(f"w2 of shape {tuple(w2.shape)} has no rows: for experts with one product take moe_dispatch_gemm")
    if up is not None and up.shape != w1.shape:
        raise InvalidArgument(f"w1 and w1_up have shapes {tuple(w1.shape)} and {tuple(up.shape)}: they must be the same")
    wanted = inner if up is not None else 2 * inner
    if w1.shape[2] != wanted:
        halves = "with w1_up" if up is not None else "gates and ups in one"
        raise InvalidArgument(
            f"w1 of shape {tuple(w1.shape)} has {w1.shape[2]} columns; {halves} and w2 of shape {tuple(w2.shape)} it must have "
            f"{wanted}"
        )


def _check_dimensions(name: str, tensor: torch.Tensor, dimensions: int) -> None:
    if tensor.dim() != dimensions:
        raise InvalidArgument(f"{name} has {tensor.dim()} dimensions, needed are {dimensions}")


def decide(membership: Membership, operands: MoeOperands, limits: MoeLimits, options: Options) -> MoeDecision:
    """Errors: InvalidArgument (operands that fit no operator), Refused (what mkernel does not have)."""
    described = (None if tensor is None else (tensor.shape, tensor.stride(), tensor.dtype, tensor.device) for tensor in operands)
    key = ("moe", limits, options.buckets, options.sm_margin, *described)
    found: Optional[MoeDecision] = membership.decisions.get(key)
    if found is None:
        if len(membership.decisions) >= 4096:
            membership.decisions.clear()  # only this rank's memory of what it would decide again
        check(operands, limits.num_experts, membership.world_size, membership.rank)
        _check_types(membership, operands)
        found = membership.decisions[key] = _decide(operands, limits, membership.world_size, options)
    return found


def _decide(operands: MoeOperands, limits: MoeLimits, world: int, options: Options) -> MoeDecision:
    x, ids, w2 = operands.x, operands.topk_ids, operands.w2
    tokens, hidden = x.shape
    if limits.max_tokens < 0 or limits.capacity < 0:
        raise InvalidArgument(f"max_tokens = {limits.max_tokens} and capacity = {limits.capacity} must be at least 0")
    if 0 < limits.max_tokens < tokens:
        raise InvalidArgument(f"x of shape {tuple(x.shape)} has {tokens} tokens, and max_tokens = {limits.max_tokens}")
    inner = 0 if w2 is None else w2.shape[1]
    executor, sms = executor_of(x.device, options)
    if executor == "cuda":
        _check_sizes(hidden, inner, operands.columns(), ids.shape[1], limits.num_experts)
    copied = {}
    routing = (("topk_ids", torch.int32, ids), ("topk_weights", torch.float32, operands.topk_weights))
    for name, dtype, tensor in (("x", x.dtype, x), *routing):
        if tensor.dtype != dtype:
            copied[name] = f"{name}: {tensor.dtype} becomes {dtype}"
        elif not tensor.is_contiguous():
            copied[name] = f"{name}: it is not dense (strides {tensor.stride()})"
    # Weights without elements do not show which layout the other ranks have.
    layout = _layout_of(operands) if limits.num_experts >= world else "row_major"
    for name, w in operands.weights().items():
        if not _is_dense(w, layout):
            copied[name] = f"{name}: it is not dense and {layout}, as the plan has all weights (strides {w.stride()})"
    bound = limits.max_tokens or bucket_of(tokens, options.buckets)
    key = MoeKey(bound, hidden, operands.columns(), inner, limits.num_experts, ids.shape[1], DTYPES[x.dtype], layout, limits.capacity,
                 executor, sms, limits.weights_on_input)
    return MoeDecision(key if bound else None, tokens, frozenset(copied), tuple(copied.values()))


def _check_sizes(hidden: int, intermediate: int, n: int, topk: int, experts: int) -> None:
    """Refuses what the cuda executor does not have. TMA moves rows of whole 16 bytes."""
    for field, value in (("hidden", hidden), ("intermediate", intermediate), ("n", n)):
        if value % 8 != 0:
            raise Refused(f"{field} is no multiple of 8", f"{field} = {value}; the cuda executor takes multiples of 8")
    for field, value, most in (("topk", topk, MOST_TOPK), ("num_experts", experts, MOST_EXPERTS)):
        if value > most:
            raise Refused(f"{field} is above {most}", f"{field} = {value}; the cuda executor takes at most {most}")


def _check_types(membership: Membership, operands: MoeOperands) -> None:
    x = operands.x
    weights = operands.weights()
    for name, tensor in (("x", x), *weights.items()):
        if tensor.dtype not in DTYPES:
            raise Refused(f"dtype {tensor.dtype}", f"{name} has dtype {tensor.dtype}; mkernel has torch.bfloat16 and torch.float16")
        if tensor.dtype != x.dtype:
            raise InvalidArgument(f"{name} has dtype {tensor.dtype} and x {x.dtype}: they must be the same")
    if operands.topk_ids.dtype not in (torch.int32, torch.int64):
        raise InvalidArgument(f"topk_ids has dtype {operands.topk_ids.dtype}; accepted are torch.int32 and torch.int64")
    if not operands.topk_weights.dtype.is_floating_point:
        raise InvalidArgument(f"topk_weights has dtype {operands.topk_weights.dtype}; accepted are floating-point types")
    check_device("x", x.device, membership)


def _layout_of(operands: MoeOperands) -> str:
    """The layout for which the least is copied of an expert, which is the same on every rank."""

    def elements(layout: str) -> int:
        return sum(w.shape[1] * w.shape[2] for w in operands.weights().values() if not _is_dense(w, layout))

    return min(("row_major", "column_major"), key=elements)


def _is_dense(w: torch.Tensor, layout: str) -> bool:
    """Of [experts, k, n], row-major or each expert's matrix transposed. A dimension with one element may have any stride."""
    (experts, k, n), (outer, row, column) = w.shape, w.stride()
    if layout == "column_major":
        k, n, row, column = n, k, column, row
    return (n <= 1 or column == 1) and (k <= 1 or row == n) and (experts <= 1 or outer == k * n)
