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
    shared_w1: Optional[torch.Tensor] = None
    shared_w1_up: Optional[torch.Tensor] = None
    shared_w2: Optional[torch.Tensor] = None
    shared_weights: Optional[torch.Tensor] = None

    def experts(self) -> "dict[str, torch.Tensor]":
        """The matrices of the experts by their names in the operator's schema."""
        if self.w2 is None:
            return {"w": self.w1}
        halves = {"w1": self.w1} if self.w1_up is None else {"w1": self.w1, "w1_up": self.w1_up}
        return {**halves, "w2": self.w2}

    def shared(self) -> "dict[str, torch.Tensor]":
        """Those of the shared expert."""
        named = {"shared_w1": self.shared_w1, "shared_w1_up": self.shared_w1_up, "shared_w2": self.shared_w2}
        return {name: w for name, w in named.items() if w is not None}

    def matrices(self) -> "dict[str, torch.Tensor]":
        """All of them with three dimensions: the shared expert's as those of one expert."""
        return {**self.experts(), **{name: w.unsqueeze(0) for name, w in self.shared().items()}}

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
    named = {"topk_ids": ids, "topk_weights": weights, **operands.experts(), **operands.shared()}
    if operands.shared_weights is not None:
        named["shared_weights"] = operands.shared_weights
    for name, tensor in named.items():
        if tensor.device != x.device:
            raise InvalidArgument(f"{name} is on {tensor.device} and x on {x.device}: they must be on the same device")
    for name, tensor in (("x", x), ("topk_ids", ids), ("topk_weights", weights)):
        _check_dimensions(name, tensor, 2)
    if ids.shape != weights.shape:
        raise InvalidArgument(f"topk_ids and topk_weights have shapes {tuple(ids.shape)} and {tuple(weights.shape)}, which differ")
    if ids.shape[0] != x.shape[0]:
        raise InvalidArgument(f"x of shape {tuple(x.shape)} has {x.shape[0]} tokens, and topk_ids has {ids.shape[0]}")
    mine = block_size(num_experts, world, rank)
    for name, w in operands.experts().items():
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
        if operands.w2.shape[1] == 0:
            raise InvalidArgument(
                f"w2 of shape {tuple(operands.w2.shape)} has no rows: for experts with one product take moe_dispatch_gemm"
            )
        _check_halves("", operands.w1, operands.w1_up, operands.w2)
    _check_shared(operands)


def _check_halves(prefix: str, w1: torch.Tensor, up: Optional[torch.Tensor], w2: torch.Tensor) -> None:
    """`prefix`: of the names. The last two dimensions are a matrix's."""
    inner = w2.shape[-2]
    if up is not None and up.shape != w1.shape:
        raise InvalidArgument(
            f"{prefix}w1 and {prefix}w1_up have shapes {tuple(w1.shape)} and {tuple(up.shape)}: they must be the same"
        )
    wanted = inner if up is not None else 2 * inner
    if w1.shape[-1] != wanted:
        halves = f"with {prefix}w1_up" if up is not None else "gates and ups in one"
        raise InvalidArgument(
            f"{prefix}w1 of shape {tuple(w1.shape)} has {w1.shape[-1]} columns; {halves} and {prefix}w2 of shape {tuple(w2.shape)} "
            f"it must have {wanted}"
        )


def _check_shared(operands: MoeOperands) -> None:
    x, w1, w2, factors = operands.x, operands.shared_w1, operands.shared_w2, operands.shared_weights
    if w1 is None or w2 is None:
        given = [name for name, value in zip(operands._fields, operands) if name.startswith("shared_") and value is not None]
        if given:
            raise InvalidArgument(f"{' and '.join(given)} given: a shared expert needs both shared_w1 and shared_w2")
        return
    for name, w in operands.shared().items():
        _check_dimensions(name, w, 2)
    if w2.shape[0] == 0:
        raise InvalidArgument(f"shared_w2 of shape {tuple(w2.shape)} has no rows: without a shared expert give None")
    if w1.shape[0] != x.shape[1] or w2.shape[1] != operands.columns():
        raise InvalidArgument(
            f"shared_w1 and shared_w2 have shapes {tuple(w1.shape)} and {tuple(w2.shape)}: from x to the result the shared expert "
            f"needs {x.shape[1]} rows and {operands.columns()} columns"
        )
    _check_halves("shared_", w1, operands.shared_w1_up, w2)
    if factors is not None and factors.shape != x.shape[:1]:
        raise InvalidArgument(f"shared_weights has shape {tuple(factors.shape)}, needed is ({x.shape[0]},)")


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
    shared = 0 if operands.shared_w2 is None else operands.shared_w2.shape[0]
    if executor == "cuda":
        _check_sizes(hidden, inner, operands.columns(), ids.shape[1], limits.num_experts, shared)
    copied = {}
    factors = () if operands.shared_weights is None else (("shared_weights", torch.float32, operands.shared_weights),)
    routing = (("topk_ids", torch.int32, ids), ("topk_weights", torch.float32, operands.topk_weights), *factors)
    for name, dtype, tensor in (("x", x.dtype, x), *routing):
        if tensor.dtype != dtype:
            copied[name] = f"{name}: {tensor.dtype} becomes {dtype}"
        elif not tensor.is_contiguous():
            copied[name] = f"{name}: it is not dense (strides {tensor.stride()})"
    # Weights without elements do not show which layout the other ranks have.
    layout = _layout_of(operands) if limits.num_experts >= world else "row_major"
    for name, w in operands.matrices().items():
        if not _is_dense(w, layout):
            copied[name] = f"{name}: it is not dense and {layout}, as the plan has all weights (strides {w.stride()})"
    bound = limits.max_tokens or bucket_of(tokens, options.buckets)
    key = MoeKey(bound, hidden, operands.columns(), inner, limits.num_experts, ids.shape[1], DTYPES[x.dtype], layout, limits.capacity,
                 executor, sms, limits.weights_on_input, shared)
    return MoeDecision(key if bound else None, tokens, frozenset(copied), tuple(copied.values()))


def _check_sizes(hidden: int, intermediate: int, n: int, topk: int, experts: int, shared: int) -> None:
    """Refuses what the cuda executor does not have. TMA moves rows of whole 16 bytes."""
    sizes = (("hidden", hidden), ("intermediate", intermediate), ("n", n), ("the shared expert's intermediate", shared))
    for field, value in sizes:
        if value % 8 != 0:
            raise Refused(f"{field} is no multiple of 8", f"{field} = {value}; the cuda executor takes multiples of 8")
    for field, value, most in (("topk", topk, MOST_TOPK), ("num_experts", experts, MOST_EXPERTS)):
        if value > most:
            raise Refused(f"{field} is above {most}", f"{field} = {value}; the cuda executor takes at most {most}")


def _check_types(membership: Membership, operands: MoeOperands) -> None:
    x = operands.x
    for name, tensor in (("x", x), *operands.matrices().items()):
        if tensor.dtype not in DTYPES:
            raise Refused(f"dtype {tensor.dtype}", f"{name} has dtype {tensor.dtype}; mkernel has torch.bfloat16 and torch.float16")
        if tensor.dtype != x.dtype:
            raise InvalidArgument(f"{name} has dtype {tensor.dtype} and x {x.dtype}: they must be the same")
    if operands.topk_ids.dtype not in (torch.int32, torch.int64):
        raise InvalidArgument(f"topk_ids has dtype {operands.topk_ids.dtype}; accepted are torch.int32 and torch.int64")
    for name, factors in (("topk_weights", operands.topk_weights), ("shared_weights", operands.shared_weights)):
        if factors is not None and not factors.dtype.is_floating_point:
            raise InvalidArgument(f"{name} has dtype {factors.dtype}; accepted are floating-point types")
    check_device("x", x.device, membership)


def _layout_of(operands: MoeOperands) -> str:
    """The layout for which the least is copied of an expert, which is the same on every rank. The shared expert has no say: it is
    one of many."""

    def elements(layout: str) -> int:
        return sum(w.shape[1] * w.shape[2] for w in operands.experts().values() if not _is_dense(w, layout))

    return min(("row_major", "column_major"), key=elements)


def _is_dense(w: torch.Tensor, layout: str) -> bool:
    """Of [experts, k, n], row-major or each expert's matrix transposed. A dimension with one element may have any stride."""
    (experts, k, n), (outer, row, column) = w.shape, w.stride()
    if layout == "column_major":
        k, n, row, column = n, k, column, row
    return (n <= 1 or column == 1) and (k <= 1 or row == n) and (experts <= 1 or outer == k * n)
