"""The grouped product in torch.ops.mkernel, with the call of torch._grouped_mm: mkernel's for rows that are sorted by group, torch's
own for the rest."""

import contextlib
from typing import Any, NamedTuple, Optional

import torch

from mkernel.errors import InvalidArgument, Unimplemented
from mkernel.torch import _autocast
from mkernel.torch._decide import DTYPES, Refused, check_device, executor_of
from mkernel.torch._groups import Membership, NotInitialized, alone_on, count_fallback
from mkernel.torch._options import Options, bucket_of, copies, current, totals
from mkernel.torch._plans import GroupedKey
from mkernel.torch._run import aligned
from mkernel.torch._varlen_packing import within

NAME = "grouped_mm"
SCHEMAS = {NAME: "(Tensor self, Tensor mat2, Tensor? offs=None, Tensor? bias=None, ScalarType? out_dtype=None) -> Tensor"}
MOST_GROUPS = 1024


class GroupedDecision(NamedTuple):
    """`rows` of a are launched as those of the plan."""

    key: Optional[GroupedKey]  # None: the result has no elements
    rows: int
    copies: "tuple[str, ...]"  # what is copied and why; details in brackets, which counters() leave out


def _theirs(a: torch.Tensor, b: torch.Tensor, offs: Optional[torch.Tensor], bias: Optional[torch.Tensor],
            out_dtype: Optional[torch.dtype]) -> torch.Tensor:
    own: Any = getattr(torch, "_grouped_mm", None)
    if own is None:
        raise Unimplemented(f"grouped_mm: PyTorch {torch.__version__} has no torch._grouped_mm to fall back to")
    result: torch.Tensor = own(a, b, offs=offs, bias=bias, out_dtype=out_dtype)
    return result.contiguous()  # torch's may have a gap behind each row


def _check(a: torch.Tensor, b: torch.Tensor, offs: Optional[torch.Tensor], bias: Optional[torch.Tensor],
           out_dtype: Optional[torch.dtype]) -> None:
    """Errors: Refused (what mkernel does not have), InvalidArgument (sizes that fit no product)."""
    if a.dim() != 2 or b.dim() != 3 or offs is None:
        raise Refused("operands are not 2-d, 3-d and offs", f"self has {a.dim()} dimensions and mat2 {b.dim()}; mkernel has 2 x 3, with offs")
    if bias is not None:
        raise Refused("bias", "bias is given; mkernel adds none")
    for name, tensor in (("self", a), ("mat2", b)):
        if tensor.dtype not in DTYPES or tensor.dtype != a.dtype:
            raise Refused(f"dtype {tensor.dtype}", f"{name} has dtype {tensor.dtype}; mkernel has torch.bfloat16 and torch.float16")
    if out_dtype not in (None, a.dtype):
        raise Refused(f"out_dtype {out_dtype}", f"out_dtype = {out_dtype}; mkernel has that of the operands, {a.dtype}")
    if a.shape[1] != b.shape[1]:
        raise InvalidArgument(f"self and mat2 have shapes {tuple(a.shape)} and {tuple(b.shape)}: the last of self is not the second of mat2")
    if offs.shape != b.shape[:1] or offs.dtype != torch.int32:
        raise InvalidArgument(f"offs has shape {tuple(offs.shape)} and dtype {offs.dtype}, needed are ({b.shape[0]},) and torch.int32")
    if not a.device == b.device == offs.device:
        raise InvalidArgument(f"self, mat2 and offs are on {a.device}, {b.device} and {offs.device}: they must be on the same device")
    if b.shape[0] == 0 or a.shape[1] == 0:
        raise Refused("there are no groups, or no columns", f"mat2 has shape {tuple(b.shape)}: there is nothing to multiply")


def _layout(b: torch.Tensor) -> str:
    if b.is_contiguous():
        return "row_major"
    if b.transpose(1, 2).is_contiguous():
        return "column_major"
    raise Refused("mat2 is not dense", f"mat2 has strides {b.stride()}; mkernel takes dense matrices and their transposes")


def decide(a: torch.Tensor, b: torch.Tensor, offs: Optional[torch.Tensor], bias: Optional[torch.Tensor],
           out_dtype: Optional[torch.dtype], options: Options) -> "tuple[Membership, GroupedDecision]":
    """Errors: InvalidArgument (operands that fit no product), Refused (what mkernel does not have), NotInitialized."""
    _check(a, b, offs, bias, out_dtype)
    membership = alone_on(a.device)
    check_device("self", a.device, membership)
    rows, k = a.shape
    groups, _, n = b.shape
    if groups > MOST_GROUPS:
        raise Refused(f"groups are above {MOST_GROUPS}", f"mat2 of shape {tuple(b.shape)} has {groups} groups; mkernel takes {MOST_GROUPS}")
    executor, sms = executor_of(a.device, options)
    if executor == "cuda" and (k % 8 or n % 8):
        raise Refused("k or n is no multiple of 8", f"mat2 has shape {tuple(b.shape)}; the cuda executor takes multiples of 8")
    layout, bound = _layout(b), bucket_of(rows, options.buckets)
    if not rows or not n:
        return membership, GroupedDecision(None, rows, ())
    copied: "tuple[str, ...]" = ()
    if rows != bound:
        copied = (f"self: its rows are padded to those of the bucket ({rows} to {bound})",)
    elif not a.is_contiguous():
        copied = (f"self: it is not dense (strides {a.stride()})",)
    return membership, GroupedDecision(GroupedKey(bound, k, n, groups, DTYPES[a.dtype], layout, executor, sms), rows, copied)


def _call(a: torch.Tensor, b: torch.Tensor, offs: Optional[torch.Tensor], bias: Optional[torch.Tensor],
          out_dtype: Optional[torch.dtype]) -> torch.Tensor:
    options = current()
    membership, decision = decide(a, b, offs, bias, out_dtype, options)
    assert offs is not None
    if offs.device.type == "cpu":
        _check_offs(offs, decision.rows)
    if decision.key is None:
        return a.new_empty(decision.rows, b.shape[2])
    with membership.lock:
        return _launch(membership, decision.key, decision.copies, a, b, offs, options)


def _check_offs(offs: torch.Tensor, rows: int) -> None:
    """The values of a tensor in host memory, against the rows of self: the operation has those of the bucket."""
    before = 0
    for index, end in enumerate(offs.tolist()):
        if not before <= end <= rows:
            raise InvalidArgument(f"offs[{index}] = {end}, but it must be {before}..{rows}: self has {rows} rows")
        before = end


def _launch(membership: Membership, key: GroupedKey, copied: "tuple[str, ...]", a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor,
            options: Options) -> torch.Tensor:
    rows = a.shape[0]
    stream, captured = membership.stream() if a.is_cuda else (0, False)
    plan = membership.plans.get(key, captured)
    for copy in copied:
        copies[copy.partition(" (")[0]] += 1
    if rows != key.max_rows:
        totals["padded"] += 1
        padded = plan.staging("a", a, key.max_rows, key.k)
        padded[:rows].copy_(a)  # the groups end before the others
        if offs.is_cuda:
            offs = within(offs, rows)
    else:
        padded = aligned(a.contiguous(), "self")
    c = a.new_empty(key.max_rows, key.n)
    try:
        pending = plan.start(options, stream, {"a": padded, "ends": offs.contiguous(), "b": aligned(b, "mat2"), "c": c})
        totals["launches"] += 1
        if pending is not None:
            pending.wait()
    except BaseException:
        plan.forget_staging()
        raise
    return c[:rows]


def _real(self: torch.Tensor, mat2: torch.Tensor, offs: Optional[torch.Tensor] = None, bias: Optional[torch.Tensor] = None,
          out_dtype: Optional[torch.dtype] = None) -> torch.Tensor:
    totals[NAME] += 1
    try:
        return _call(self, mat2, offs, bias, out_dtype)
    except (Refused, NotInitialized) as error:
        count_fallback(f"{NAME}: {error.reason}", None)
    return _theirs(self, mat2, offs, bias, out_dtype)


def _fake(self: torch.Tensor, mat2: torch.Tensor, offs: Optional[torch.Tensor] = None, bias: Optional[torch.Tensor] = None,
          out_dtype: Optional[torch.dtype] = None) -> torch.Tensor:
    with contextlib.suppress(Refused):  # torch's own says what it wants of what mkernel does not have
        _check(self, mat2, offs, bias, out_dtype)
    if self.dim() == 2 and mat2.dim() == 2:
        assert offs is not None
        shape = (offs.shape[0], self.shape[0], mat2.shape[1])
    else:
        shape = (*self.shape[:-1], mat2.shape[-1])
    return self.new_empty(shape, dtype=out_dtype)


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    a, b, offs, bias, _ = inputs
    if bias is not None:
        raise Unimplemented("grouped_mm: there is no gradient with a bias")
    ctx.save_for_backward(a, b, offs)


def _backward(ctx: Any, gradient: torch.Tensor) -> Any:
    a, b, offs = ctx.saved_tensors
    needs_a, needs_b = ctx.needs_input_grad[:2]
    gradient = gradient.to(a.dtype).contiguous()
    of_a = of_b = None
    if needs_a:
        of_a = torch.ops.mkernel.grouped_mm(gradient, b.transpose(-2, -1), offs)
    if needs_b:  # with the strides of a weight's gradient when b is the transpose of a weight
        if b.is_contiguous():
            of_b = torch.ops.mkernel.grouped_mm(a.transpose(-2, -1), gradient, offs)
        else:
            of_b = torch.ops.mkernel.grouped_mm(gradient.transpose(-2, -1), a, offs).transpose(-2, -1)
    return of_a, of_b, None, None, None


_Library: Any = torch.library.Library  # which has no types
_library = _Library("mkernel", "FRAGMENT")
_library.define(NAME + SCHEMAS[NAME], tags=[torch.Tag.needs_fixed_stride_order])
for _key in ("CPU", "CUDA"):
    _library.impl(NAME, _real, _key)
torch.library.register_fake(f"mkernel::{NAME}", _fake, lib=_library)
torch.library.register_autograd(f"mkernel::{NAME}", _backward, setup_context=_setup, lib=_library)
_autocast.register(_library, NAME, ("self", "mat2", "bias"))


def grouped_mm(input: torch.Tensor, mat2: torch.Tensor, *, offs: Optional[torch.Tensor] = None, bias: Optional[torch.Tensor] = None,
               out_dtype: Optional[torch.dtype] = None) -> torch.Tensor:
    """torch._grouped_mm() of this process alone: with input [rows, k], whose rows are sorted by group, mat2 [groups, k, n] and offs
    [groups], int32, behind which row each group ends, c[rows of group g] = input[rows of group g] x mat2[g]. Rows behind the last
    group hold anything. The result is dense.

    Everything else that torch._grouped_mm() takes, and what is no bf16 or f16, runs there and is counted with its reason
    (counters()["fallbacks"]); so are calls in a process without init(). Errors: InvalidArgument (shapes that do not fit; bad offs,
    on a GPU by synchronize(), where an entry beyond the rows may read 2147483647), and those of torch._grouped_mm()."""
    result: torch.Tensor = torch.ops.mkernel.grouped_mm(input, mat2, offs, bias, out_dtype)
    return result
