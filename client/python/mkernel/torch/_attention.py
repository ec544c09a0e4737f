"""The attention operators in torch.ops.mkernel: schemas, the call on real tensors, shapes for torch.compile, gradients."""

from typing import Any, Callable, Optional

import torch

from mkernel.errors import Error, Unimplemented
from mkernel.torch import _attention_torch, _autocast
from mkernel.torch._attention_decide import (
    ALONE,
    BACKWARD,
    RING,
    AttentionDecision,
    Call,
    Operands,
    check,
    check_backward,
    check_ring,
    decide,
    is_ring,
)
from mkernel.torch._decide import Refused
from mkernel.torch._groups import Membership, NotInitialized, alone_on, count_fallback, membership_of, resolve
from mkernel.torch._moe import refuse_gradients
from mkernel.torch._options import Options, copies, current, totals
from mkernel.torch._run import aligned, compare

_OPERANDS, _WINDOW = "Tensor q, Tensor k, Tensor v", "int window_left=-1, int window_right=-1"
_RING = "*, int sequence=0, bool zigzag=True"
_SAVED = "Tensor? d_out, Tensor? d_lse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, bool causal, float? scale"
SCHEMAS = {
    ALONE: f"({_OPERANDS}, bool causal=False, float? scale=None, {_WINDOW}) -> (Tensor, Tensor)",
    RING: f"({_OPERANDS}, bool causal, float? scale, str group_name, {_RING}) -> (Tensor, Tensor)",
}
# Operators of their own, so that torch.compile does not look into them.
BACKWARD_SCHEMAS = {
    BACKWARD[ALONE]: f"({_SAVED}, {_WINDOW}) -> (Tensor, Tensor, Tensor)",
    BACKWARD[RING]: f"({_SAVED}, str group_name, {_RING}) -> (Tensor, Tensor, Tensor)",
}
Result = tuple[torch.Tensor, torch.Tensor]
Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


# ---- the call


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False, scale: Optional[float] = None,
              window_left: int = -1, window_right: int = -1) -> Result:
    totals[ALONE] += 1
    call = Call(causal, scale, window_left=window_left, window_right=window_right)
    try:
        return _attend(ALONE, alone_on(q.device), q, k, v, call)
    except (Refused, NotInitialized) as error:
        count_fallback(f"{ALONE}: {error.reason}", None)
    check(q, k, v, call)
    return _attention_torch.attend(q, k, v, call)


def ring_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: Optional[float], group_name: str, *,
                   sequence: int = 0, zigzag: bool = True) -> Result:
    totals[RING] += 1
    call = Call(causal, scale, sequence, zigzag)
    try:
        return _attend(RING, membership_of(group_name), q, k, v, call)
    except (Refused, NotInitialized) as error:
        count_fallback(f"{RING}: {error.reason}", group_name)
    _check_ring(q, k, v, call, group_name)
    return _attention_torch.ring_attend(q, k, v, call, group_name)


def _attend(kind: str, membership: Membership, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: Call) -> Result:
    operands, options = {"q": q, "k": k, "v": v}, current()
    with membership.lock:
        decision = _decided(kind, membership, operands, call, options)
        out, lse = _results(q)
        if decision.key is None:
            return out.zero_(), lse.fill_(float("-inf"))
        launch(membership, decision, operands, {"out": out, "lse": lse}, options)
    return out, lse


def _decided(kind: str, membership: Membership, operands: Operands, call: Call, options: Options) -> AttentionDecision:
    """decide(), with the option `check` compared over all ranks: one that cannot go on keeps nobody waiting."""
    if not options.check or not is_ring(kind):
        return decide(kind, membership, operands, call, options)
    what = "operation, or why there is none"
    try:
        decision = decide(kind, membership, operands, call, options)
    except Error as error:
        compare(membership, what, [error.text])
        raise
    compare(membership, what, [str(decision.key)])
    return decision


def launch(membership: Membership, decision: AttentionDecision, operands: Operands, results: Operands, options: Options) -> None:
    """With the membership's lock."""
    assert decision.key is not None
    for copy in decision.copies:
        copies[copy.partition(" (")[0]] += 1
    stream, captured = membership.stream() if operands["q"].is_cuda else (0, False)
    plan = membership.plans.get(decision.key, captured)
    dense = {name: aligned(x.contiguous(), name) for name, x in operands.items()}
    pending = plan.start(options, stream, {**dense, **results})
    totals["launches"] += 1
    if pending is not None:
        pending.wait()


def _results(q: torch.Tensor) -> Result:
    lse_shape = (q.shape[0], q.shape[2], q.shape[1])
    return q.new_empty(q.shape), q.new_empty(lse_shape, dtype=_attention_torch.sum_dtype(q.dtype))


def _check_ring(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: Call, group_name: str) -> None:
    group = resolve(group_name)
    check_ring(q, k, v, call, group.size(), group.rank())


# ---- gradients


def attention_backward(d_out: Optional[torch.Tensor], d_lse: Optional[torch.Tensor], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
                       out: torch.Tensor, lse: torch.Tensor, causal: bool, scale: Optional[float], window_left: int = -1,
                       window_right: int = -1) -> Gradients:
    name = BACKWARD[ALONE]
    totals[name] += 1
    call = Call(causal, scale, window_left=window_left, window_right=window_right)
    check_backward(d_out, d_lse, q, out, lse)
    try:
        operands = backward_operands(d_out, d_lse, {"q": q, "k": k, "v": v}, out, lse)
        return _differentiate(name, alone_on(q.device), operands, call)
    except (Refused, NotInitialized) as error:
        count_fallback(f"{name}: {error.reason}", None)
    check(q, k, v, call)
    return _attention_torch.gradients(_attention_torch.Saved(q, out, lse, d_out, d_lse), k, v, call)


def ring_attention_backward(d_out: Optional[torch.Tensor], d_lse: Optional[torch.Tensor], q: torch.Tensor, k: torch.Tensor,
                            v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, causal: bool, scale: Optional[float],
                            group_name: str, *, sequence: int = 0, zigzag: bool = True) -> Gradients:
    name = BACKWARD[RING]
    totals[name] += 1
    call = Call(causal, scale, sequence, zigzag)
    check_backward(d_out, d_lse, q, out, lse)
    try:
        operands = backward_operands(d_out, d_lse, {"q": q, "k": k, "v": v}, out, lse)
        return _differentiate(name, membership_of(group_name), operands, call)
    except (Unimplemented, NotInitialized) as error:  # also of a library whose cuda executor does not have it
        count_fallback(f"{name}: {getattr(error, 'reason', 'the library has no operation for it')}", group_name)
    _check_ring(q, k, v, call, group_name)
    return _attention_torch.ring_gradients(_attention_torch.Saved(q, out, lse, d_out, d_lse), k, v, call, group_name)


def backward_operands(d_out: Optional[torch.Tensor], d_lse: Optional[torch.Tensor], operands: Operands, out: torch.Tensor,
                      lse: torch.Tensor) -> Operands:
    """Those of the operation, whose `operands` q, k and v are. Errors: Refused."""
    if d_out is None or d_lse is not None:
        raise Refused("the loss depends on lse", "d_lse is given, or d_out is not: mkernel has the gradients that come from out alone")
    return {**operands, "out": out, "d_out": d_out, "lse": lse}


def _differentiate(kind: str, membership: Membership, operands: Operands, call: Call) -> Gradients:
    options = current()
    with membership.lock:
        decision = _decided(kind, membership, operands, call, options)
        of_q, of_k, of_v = (torch.empty_like(operands[name], memory_format=torch.contiguous_format) for name in ("q", "k", "v"))
        if decision.key is None:
            return of_q.zero_(), of_k.zero_(), of_v.zero_()
        launch(membership, decision, operands, {"d_q": of_q, "d_k": of_k, "d_v": of_v}, options)
    return of_q, of_k, of_v


def _setup(ctx: Any, inputs: "tuple[Any, ...]", output: Any, keyword_only_inputs: "Optional[dict[str, Any]]" = None) -> None:
    q, k, v, *ctx.call = inputs
    ctx.keywords = keyword_only_inputs or {}
    ctx.save_for_backward(q, k, v, *output)
    ctx.set_materialize_grads(False)


def _backward_of(name: str) -> "Callable[..., Any]":
    def backward(ctx: Any, d_out: Optional[torch.Tensor], d_lse: Optional[torch.Tensor]) -> Any:
        operator = getattr(torch.ops.mkernel, BACKWARD[name])
        found = operator(d_out, d_lse, *ctx.saved_tensors, *ctx.call, **ctx.keywords)
        return (*found, *(None for _ in ctx.call))

    return backward


# ---- shapes


def _fake_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False, scale: Optional[float] = None,
                    window_left: int = -1, window_right: int = -1) -> Result:
    check(q, k, v, Call(causal, scale, window_left=window_left, window_right=window_right))
    return _results(q)


def _fake_ring_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: Optional[float], group_name: str, *,
                         sequence: int = 0, zigzag: bool = True) -> Result:
    _check_ring(q, k, v, Call(causal, scale, sequence, zigzag), group_name)
    return _results(q)


def _fake_backward(d_out: Optional[torch.Tensor], d_lse: Optional[torch.Tensor], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
                   out: torch.Tensor, lse: torch.Tensor, *rest: Any, **keywords: Any) -> Gradients:
    check_backward(d_out, d_lse, q, out, lse)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


_Library: Any = torch.library.Library  # which has no types
_library = _Library("mkernel", "FRAGMENT")
_CALLS: "dict[str, tuple[Callable[..., Any], Callable[..., Any]]]" = {
    ALONE: (attention, _fake_attention),
    RING: (ring_attention, _fake_ring_attention),
    BACKWARD[ALONE]: (attention_backward, _fake_backward),
    BACKWARD[RING]: (ring_attention_backward, _fake_backward),
}
for _name, _schema in {**SCHEMAS, **BACKWARD_SCHEMAS}.items():
    _real, _shape = _CALLS[_name]
    _library.define(_name + _schema, tags=[torch.Tag.needs_fixed_stride_order])
    for _key in ("CPU", "CUDA"):
        _library.impl(_name, _real, _key)
    torch.library.register_fake(f"mkernel::{_name}", _shape, lib=_library)
    if _name in SCHEMAS:
        torch.library.register_autograd(f"mkernel::{_name}", _backward_of(_name), setup_context=_setup, lib=_library)
        _autocast.register(_library, _name, ("q", "k", "v"))
    else:
        _library.impl(_name, refuse_gradients(_name), "Autograd", with_keyset=True)
