"""What a call will do, decided from shapes, strides and types alone: which operations, which bucket of rows, what is copied."""

import dataclasses
from typing import Any, Optional, Sequence

import torch

from mkernel._abi import MOST_MORE_B
from mkernel.errors import InvalidArgument, Unimplemented
from mkernel.torch._groups import Membership
from mkernel.torch._options import Options, bucket_of
from mkernel.torch._plans import GemmKey

DTYPES = {torch.bfloat16: "bf16", torch.float16: "f16"}
KINDS = {"fused_all_gather_matmul": "ag_gemm", "fused_matmul_reduce_scatter": "gemm_rs", "fused_matmul_all_reduce": "gemm_ar"}
# The name that the dimension has in the schema of an operator.
DIMENSIONS = {"ag_gemm": "gather_dim", "gemm_rs": "scatter_dim", "gemm_ar": ""}


class Refused(Unimplemented):
    """mkernel does not have it, but torch may. `reason` is what counters() count it under."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclasses.dataclass(frozen=True)
class Decision:
    """`rows` of each of `blocks` blocks of A are launched as `bucket` rows. A block is what belongs to one rank. Of several B those
    that are `fused` are multiplied by one launch; torch multiplies the others with the rows that it has gathered."""

    kind: str
    key: Optional[GemmKey]  # None: there is nothing to compute
    fused: "tuple[int, ...]"
    rows: int
    blocks: int
    bucket: int
    copy_a: bool
    copy_b: bool
    copies: "tuple[str, ...]"  # what is copied and why; details in brackets, which counters() leave out

    @property
    def padded(self) -> bool:
        return self.bucket != self.rows


def check(kind: str, a: torch.Tensor, bs: "Sequence[torch.Tensor]", dim: int, world: int) -> None:
    """Raises what is wrong with the shapes, and refuses those that mkernel does not have; also for fake tensors."""
    name = DIMENSIONS[kind]
    last = kind != "gemm_ar" and dim == a.dim() - 1
    if a.dim() < 2:
        raise InvalidArgument(f"A has {a.dim()} dimensions, needed are at least 2")
    if not bs:
        raise InvalidArgument("Bs is empty")
    for index, b in enumerate(bs):
        if b.dim() != 2:
            raise InvalidArgument(f"{_name(bs, index)} has {b.dim()} dimensions, needed are 2")
        if b.shape[0] != a.shape[-1] * (world if last and kind == "ag_gemm" else 1):
            shapes = f"{tuple(a.shape)} and {tuple(b.shape)}"
            raise InvalidArgument(f"A and {_name(bs, index)} have shapes {shapes}: the last of A is not the first of B")
    if not 0 <= dim < a.dim():
        raise InvalidArgument(f"{name} = {dim} is not 0..{a.dim() - 1}")
    if last:
        raise Refused(f"{name} is the last dimension", f"{name} = {dim} is the last dimension of A: mkernel splits rows alone")
    if kind == "gemm_rs" and a.shape[dim] % world != 0:
        raise InvalidArgument(
            f"A of shape {tuple(a.shape)} has {a.shape[dim]} along {name} = {dim}, which {world} ranks cannot share evenly"
        )


def check_reduce_op(reduce_op: str) -> None:
    if reduce_op not in ("sum", "avg"):
        raise InvalidArgument(f"reduce_op = {reduce_op!r}; known are sum, avg")


def decide(kind: str, membership: Membership, a: torch.Tensor, bs: "Sequence[torch.Tensor]", dim: int,
           options: Options) -> Decision:
    """Errors: InvalidArgument (operands that fit no operator), Refused (what mkernel does not have)."""
    key = (kind, dim, a.shape, a.stride(), a.dtype, a.device, *((b.shape, b.stride(), b.dtype, b.device) for b in bs),
           options.buckets, options.sm_margin)
    found: Optional[Decision] = membership.decisions.get(key)
    if found is None:
        if len(membership.decisions) >= 4096:
            membership.decisions.clear()  # only this rank's memory of what it would decide again
        check(kind, a, bs, dim, membership.world_size)
        found = membership.decisions[key] = _decide(kind, membership, a, bs, dim, options)
    return found


def _decide(kind: str, membership: Membership, a: torch.Tensor, bs: "Sequence[torch.Tensor]", dim: int,
            options: Options) -> Decision:
    _check_types(kind, membership, a, bs)
    world, k = membership.world_size, a.shape[-1]
    if k == 0:
        raise Refused("A has no columns", f"A of shape {tuple(a.shape)} has no columns: there is nothing to multiply")
    front = a.movedim(dim, 0)
    blocks = world if kind == "gemm_rs" else 1
    rows = a.numel() // k // blocks
    bucket = bucket_of(rows, options.buckets)
    copies = []
    copy_a = not front.is_contiguous()
    if copy_a:
        copies.append(f"A: its rows do not lie one behind the other (along dimension {dim}, strides {a.stride()})")
    if bucket != rows:
        copies.append(f"A: its rows are padded to those of the bucket ({rows} to {bucket})")
        if kind == "ag_gemm":
            copies.append("C: the rows of each rank are taken out of the padded result")
    if kind == "gemm_rs" and dim != 0:
        copies.append(f"C: the scattered dimension goes back to its place (scatter_dim = {dim})")
    widest = max(range(len(bs)), key=lambda index: bs[index].shape[1])
    b = bs[widest]
    executor, sms = executor_of(a.device, options)
    if executor == "cuda":
        _check_columns("A", k)
        _check_columns(_name(bs, widest), b.shape[1])
    layout = _layout(b)
    if not layout:
        copies.append(f"{_name(bs, widest)}: it is neither dense nor the transpose of a dense matrix (strides {b.stride()})")
    fused = _fused_with(widest, bs, layout, executor)
    n, *more_n = (bs[index].shape[1] for index in fused)
    m = bucket if kind == "gemm_ar" else bucket * world
    key = None
    if rows and n:
        key = GemmKey(kind, m, n, k, DTYPES[a.dtype], layout or "row_major", executor, sms, tuple(more_n))
    return Decision(kind, key, fused, rows, blocks, bucket, copy_a, not layout, tuple(copies))


def _layout(b: torch.Tensor) -> str:
    """Without a copy; "": there is none."""
    return "row_major" if b.is_contiguous() else "column_major" if b.t().is_contiguous() else ""


def _fused_with(widest: int, bs: "Sequence[torch.Tensor]", layout: str, executor: str) -> "tuple[int, ...]":
    """Those that one launch multiplies, the widest first: of its layout, and with columns that the executor takes."""

    def fits(index: int) -> bool:
        n = bs[index].shape[1]
        return index != widest and n > 0 and _layout(bs[index]) == layout != "" and (executor == "cpu" or n % 8 == 0)

    return (widest, *[index for index in range(len(bs)) if fits(index)][:MOST_MORE_B])


def _check_types(kind: str, membership: Membership, a: torch.Tensor, bs: "Sequence[torch.Tensor]") -> None:
    for name, tensor in (("A", a), *((_name(bs, index), b) for index, b in enumerate(bs))):
        if tensor.dtype not in DTYPES:
            raise Refused(f"dtype {tensor.dtype}", f"{name} has dtype {tensor.dtype}; mkernel has torch.bfloat16 and torch.float16")
        if tensor.dtype != a.dtype:
            raise InvalidArgument(f"{name} has dtype {tensor.dtype} and A {a.dtype}: they must be the same")
        if tensor.device != a.device:
            raise InvalidArgument(f"{name} is on {tensor.device} and A on {a.device}: they must be on the same device")
    check_device("A", a.device, membership)


def check_device(name: str, device: torch.device, membership: Membership) -> None:
    """Of the operand `name`."""
    if device.type == "cuda" and device.index != membership.device:
        text = f"{name} is on {device}, and the group was made for GPU {membership.device}: give init() that device"
        raise Refused("device", text)
    if device.type not in ("cpu", "cuda"):
        raise Refused(f"device {device.type}", f"{name} is on {device}; mkernel takes tensors on cpu and cuda")


def _check_columns(name: str, columns: int) -> None:
    """TMA moves rows of whole 16 bytes."""
    if columns % 8 != 0:
        raise Refused("columns are no multiple of 8", f"{name} has {columns} columns; the cuda executor takes multiples of 8")


def executor_of(device: torch.device, options: Options) -> "tuple[str, int]":
    """(executor, multiprocessors at most; 0: all)."""
    if device.type == "cpu":
        return "cpu", 0
    if options.sm_margin == 0:
        return "cuda", 0
    return "cuda", torch.cuda.get_device_properties(device).multi_processor_count - options.sm_margin


def _name(bs: "Sequence[Any]", index: int) -> str:
    return "B" if len(bs) == 1 else f"Bs[{index}]"
