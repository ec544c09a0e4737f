"""The attention operators in torch.ops.mkernel: schemas, the call on real tensors, shapes for torch.compile, gradients."""

from typing import Any, Callable, Optional

import torch

from mkernel.errors import Error
from mkernel.torch import _attention_torch
from mkernel.torch._attention_decide import ALONE, RING, AttentionDecision, Call, check, check_ring, decide
from mkernel.torch._decide import Refused
from mkernel.torch._groups import Membership, NotInitialized, alone_on, count_fallback, membership_of, resolve
from mkernel.torch._moe import refuse_gradients
from mkernel.torch._options import Options, copies, current, totals
from mkernel.torch._run import aligned, compare

_OPERANDS, _CALL = "Tensor q, Tensor k, Tensor v", "bool causal=False, float? scale=None"
_RING = "*, int sequence=0, bool zigzag=True"
_SAVED = "Tensor? d_out, Tensor? d_lse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, bool causal, float? scale"
SCHEMAS = {
    ALONE: f"({_OPERANDS}, {_CALL}) -> (Tensor, Tensor)",
    RING: f"({_OPERANDS}, bool causal, float? scale, str group_name, {_RING}) -> (Tensor, Tensor)",
}
# Operators of their own, so that torch.compile does not look into them.
BACKWARD = {
    f"{ALONE}_backward": f"({_SAVED}) -> (Tensor, Tensor, Tensor)",
    f"{RING}_backward": f"({_SAVED}, str group_name, {_RING}) -> (Tensor, Tensor, Tensor)",
}
Result = tuple[torch.Tensor, torch.Tensor]
Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


# ---- the call


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False, scale: Optional[float] = None) -> Result:
    totals[ALONE] += 1
    call = Call(causal, scale)
    try:
        return _run(ALONE, alone_on(q.device), q, k, v, call)
    except (Refused, NotInitialized) as error:
        count_fallback(f"{ALONE}: {error.reason}", None)
    check(q, k, v, call)
    return _attention_torch.attend(q, k, v, call)


def ring_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: Optional[float], group_name: str, *,
                   sequence: int = 0, zigzag: bool = True) -> Result:
    totals[RING] += 1
    call = Call(causal, scale, sequence, zigzag)
    try:
        return _run(RING, membership_of(group_name), q, k, v, call)
    except (Refused, NotInitialized) as error:
        count_fallback(f"{RING}: {error.reason}", group_name)
    _check_ring(q, k, v, call, group_name)
    return _attention_torch.ring_attend(q, k, v, call, group_name)


def _run(kind: str, membership: Membership, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: Call) -> Result:
    options = current()
    with membership.lock:
        decision = (_compared if options.check and kind == RING else decide)(kind, membership, q, k, v, call, options)
        out, lse = _results(q)
        if decision.key is None:
            return out.zero_(), lse.fill_(float("-inf"))
        for copy in decision.copies:
            copies[copy.partition(" (")[0]] += 1
        stream, captured = membership.stream() if q.is_cuda else (0, False)
        plan = membership.plans.get(decision.key, captured)
        operands = {name: aligned(x.contiguous(), name) for name, x in (("q", q), ("k", k), ("v", v))}
        pending = plan.start(options, stream, {**operands, "out": out, "lse": lse})
        totals["launches"] += 1
        if pending is not None:
            pending.wait()
    return out, lse


def _compared(kind: str, membership: Membership, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: Call,
              options: Options) -> AttentionDecision:
    """decide(), compared over all ranks: one that cannot go on keeps nobody waiting."""
    what = "operation, or why there is none"
    try:
        decision = decide(kind, membership, q, k, v, call, options)
    except Error as error:
        compare(membership, what, [error.text])
        raise
    compare(membership, what, [str(decision.key)])
    return decision


def _results(q: torch.Tensor) -> Result:
    lse_shape = (q.shape[0], q.shape[2], q.shape[1])
    return q.new_empty(q.shape), q.new_empty(lse_shape, dtype=_attention_torch.sum_dtype(q.dtype))


def _check_ring(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: Call, group_name: str) -> None:
    group = resolve(group_name)
    check_ring(q, k, v, call, group.size(), group.rank())


# ---- gradients


def attention_backward(d_out: Optional[torch.Tensor], d_lse: Optional[torch.Tensor], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
                       out: torch.Tensor, lse: torch.Tensor, causal: bool, scale: Optional[float]) -> Gradients:
    saved = _attention_torch.Saved(q, out, lse, d_out, d_lse)
    return _attention_torch.gradients(saved, k, v, Call(causal, scale))


def ring_attention_backward(d_out: Optional[torch.Tensor], d_lse: Optional[torch.Tensor], q: torch.Tensor, k: torch.Tensor,
                            v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, causal: bool, scale: Optional[float],
                            group_name: str, *, sequence: int = 0, zigzag: bool = True) -> Gradients:
    saved = _attention_torch.Saved(q, out, lse, d_out, d_lse)
    return _attention_torch.ring_gradients(saved, k, v, Call(causal, scale, sequence, zigzag), group_name)


def _setup(ctx: Any, inputs: "tuple[Any, ...]", output: Any, keyword_only_inputs: "Optional[dict[str, Any]]" = None) -> None:
    q, k, v, *ctx.call = inputs
    ctx.keywords = keyword_only_inputs or {}
    ctx.save_for_backward(q, k, v, *output)
    ctx.set_materialize_grads(False)


def _backward_of(name: str) -> "Callable[..., Any]":
    def backward(ctx: Any, d_out: Optional[torch.Tensor], d_lse: Optional[torch.Tensor]) -> Any:
        operator = getattr(torch.ops.mkernel, f"{name}_backward")
        found = operator(d_out, d_lse, *ctx.saved_tensors, *ctx.call, **ctx.keywords)
        return (*found, *(None for _ in ctx.call))

    return backward


# ---- shapes


def _fake_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False, scale: Optional[float] = None) -> Result:
    check(q, k, v, Call(causal, scale))
    return _results(q)


def _fake_ring_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: Optional[float], group_name: str, *,
                         sequence: int = 0, zigzag: bool = True) -> Result:
    _check_ring(q, k, v, Call(causal, scale, sequence, zigzag), group_name)
    return _results(q)


def _fake_backward(d_out: Optional[torch.Tensor], d_lse: Optional[torch.Tensor], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
                   *rest: Any, **keywords: Any) -> Gradients:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


_Library: Any = torch.library.Library  # which has no types
_library = _Library("mkernel", "FRAGMENT")
_CALLS: "dict[str, tuple[Callable[..., Any], Callable[..., Any]]]" = {
    ALONE: (attention, _fake_attention),
    RING: (ring_attention, _fake_ring_attention),
    f"{ALONE}_backward": (attention_backward, _fake_backward),
    f"{RING}_backward": (ring_attention_backward, _fake_backward),
}
for _name, _schema in {**SCHEMAS, **BACKWARD}.items():
    _real, _shape = _CALLS[_name]
    _library.define(_name + _schema, tags=[torch.Tag.needs_fixed_stride_order])
    for _key in ("CPU", "CUDA"):
        _library.impl(_name, _real, _key)
    torch.library.register_fake(f"mkernel::{_name}", _shape, lib=_library)
    if _name in SCHEMAS:
        torch.library.register_autograd(f"mkernel::{_name}", _backward_of(_name), setup_context=_setup, lib=_library)
    else:
        _library.impl(_name, refuse_gradients(_name), "Autograd", with_keyset=True)
