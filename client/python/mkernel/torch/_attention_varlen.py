"""Ring attention over sequences of different lengths in torch.ops.mkernel: one launch of `ring_attention` on every rank.

What that does not take, causal sequences in contiguous parts among it, is a composition. Keys and values of all ranks are gathered over
the process group, and rows are copied so that the keys which a part of a sequence sees lie one behind the other. Then one launch of
`attention`, of this rank alone, takes all parts of all sequences. Nothing overlaps: the gather comes first, and the copies.

The backward pass is a composition always: it gathers, and one launch of `attention_backward` gives the gradients of all parts, those of
keys and values rounded to their type. These are summed in fp32: first over the parts of this rank, in their order, then over the ranks by
a reduce-scatter of the process group, whose order is the process group's. What mkernel does not have is computed in PyTorch, part after
part."""

from typing import Any, Optional

import torch

from mkernel.errors import Error
from mkernel.torch import _attention_torch, _autocast, _run
from mkernel.torch._attention import Gradients, Result, backward_operands, launch
from mkernel.torch._attention_decide import ALONE, RING, AttentionDecision, Call, Operands, check_served, parts_of
from mkernel.torch._attention_decide import BACKWARD as BACKWARD_KINDS
from mkernel.torch._decide import DTYPES, Refused, executor_of
from mkernel.torch._groups import Membership, NotInitialized, alone_on, count_fallback, membership_of, resolve
from mkernel.torch._moe import refuse_gradients
from mkernel.torch._options import Options, bucket_of, current, totals
from mkernel.torch._plans import AttentionKey
from mkernel.torch._varlen_packing import Packing, Sizes, check_lengths, check_varlen, packed_sizes, within

NAME, BACKWARD = "ring_attention_varlen", "ring_attention_varlen_backward"
MOST_SEQUENCES = 1024  # of the library
_OPERANDS = "Tensor q, Tensor k, Tensor v"
_CALL = "Tensor cu_seqlens, bool causal, float? scale, str group_name, *, bool zigzag=True"
SCHEMAS = {NAME: f"({_OPERANDS}, {_CALL}) -> (Tensor, Tensor)"}
_BACKWARD_SCHEMA = f"(Tensor? d_out, Tensor? d_lse, {_OPERANDS}, Tensor out, Tensor lse, {_CALL}) -> (Tensor, Tensor, Tensor)"


# ---- the call


def ring_attention_varlen(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens: torch.Tensor, causal: bool,
                          scale: Optional[float], group_name: str, *, zigzag: bool = True) -> Result:
    totals[NAME] += 1
    call = Call(causal, scale, 0, zigzag)
    sizes = _check(q, k, v, cu_seqlens, call, group_name)
    out, lse = _results(q)  # of queries that belong to no sequence: zeros, and minus infinity
    out.zero_()
    lse.fill_(float("-inf"))
    if 0 in (q.numel(), *sizes):
        return out, lse
    try:
        _ring(membership_of(group_name), q, k, v, cu_seqlens, call, out, lse)
        return out, lse
    except (Refused, NotInitialized):
        pass  # the composition, which says itself what mkernel does not have
    packing = _packing(q, cu_seqlens, call, group_name)
    k, v = _packed(packing, k, v, group_name)
    try:
        _attend(alone_on(q.device), packing, q, k, v, call, out, lse)
    except (Refused, NotInitialized) as error:
        count_fallback(f"{NAME}: {error.reason}", group_name)
        for queries, keys in packing.ranges():
            found = _attention_torch.attend(*_batch(q[queries], k[keys], v[keys]), call)
            out[queries], lse[:, queries] = found[0][0], found[1][0]
    return out, lse


def _check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens: torch.Tensor, call: Call, group_name: str) -> Sizes:
    """Of what the composition packs."""
    check_varlen(q, k, v, cu_seqlens, call)
    group = resolve(group_name)
    world, rank = group.size(), group.rank()
    if cu_seqlens.device.type == "cpu":
        check_lengths(cu_seqlens, q.shape[0], len(parts_of(call, world, rank)[1]))
    return packed_sizes(cu_seqlens.shape[0] - 1, q.shape[0], call, world, rank)


# ---- one launch


def decide_ring(membership: Membership, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sequences: int, call: Call,
                options: Options) -> AttentionDecision:
    """The launch of ring attention over `sequences` packed ones. Errors: Refused."""
    check_served(RING, membership, {"q": q.unsqueeze(0), "k": k.unsqueeze(0)}, call)
    if sequences > MOST_SEQUENCES:
        text = f"there are {sequences} sequences; mkernel takes at most {MOST_SEQUENCES}"
        raise Refused(f"more than {MOST_SEQUENCES} sequences", text)
    executor, sms = executor_of(q.device, options)
    rows = bucket_of(q.shape[0], options.buckets)
    key = AttentionKey(RING, 1, rows * membership.world_size, q.shape[1], k.shape[1], q.shape[2], call.causal, call.scale or 0.0,
                       DTYPES[q.dtype], executor, sms, None, bucket_of(sequences, options.buckets))
    copies = [f"{name}: it is not dense (strides {x.stride()})" for name, x in (("q", q), ("k", k), ("v", v)) if not x.is_contiguous()]
    if rows != q.shape[0]:
        copies.append(f"k, v: padded to a bucket of rows ({q.shape[0]} to {rows})")
    return AttentionDecision(key, tuple(copies))


def _ring(membership: Membership, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens: torch.Tensor, call: Call,
          out: torch.Tensor, lse: torch.Tensor) -> None:
    options = current()
    with membership.lock:
        decision = _decided(membership, q, k, v, cu_seqlens.shape[0] - 1, call, options)
        key = decision.key
        assert key is not None and key.max_sequences is not None
        behind = key.sequence // membership.world_size - q.shape[0]
        k, v = (torch.nn.functional.pad(x, (0, 0, 0, 0, 0, behind)) if behind else x for x in (k, v))
        lengths = _padded(within(cu_seqlens, q.shape[0]), key.max_sequences + 1)
        wide = _wide(lse, q.shape[0] + behind)
        launch(membership, decision, {"q": q, "k": k, "v": v, "cu_seqlens_q": lengths}, {"out": out, "lse": wide}, options)
    if wide is not lse:
        lse.copy_(wide[:, : lse.shape[1]])


def _decided(membership: Membership, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sequences: int, call: Call,
             options: Options) -> AttentionDecision:
    """decide_ring(), with the option `check` compared over all ranks."""
    if not options.check:
        return decide_ring(membership, q, k, v, sequences, call, options)
    what = "operation, or why there is none"
    try:
        decision = decide_ring(membership, q, k, v, sequences, call, options)
    except Error as error:
        _run.compare(membership, what, [error.text])
        raise
    _run.compare(membership, what, [str(decision.key)])
    return decision


# ---- the composition


def _packing(q: torch.Tensor, cu_seqlens: torch.Tensor, call: Call, group_name: str) -> Packing:
    group = resolve(group_name)
    return Packing(cu_seqlens, q.shape[0], call, group.size(), group.rank())


def _packed(packing: Packing, k: torch.Tensor, v: torch.Tensor, group_name: str) -> "tuple[torch.Tensor, torch.Tensor]":
    """Keys and values of all ranks, in the order of the packed sequences."""
    rows, world = packing.gathered_rows(), resolve(group_name).size()
    return _run.gather(k, world, group_name).index_select(0, rows), _run.gather(v, world, group_name).index_select(0, rows)


def decide(kind: str, membership: Membership, operands: Operands, sizes: Sizes, call: Call, options: Options) -> AttentionDecision:
    """The launch for packed sequences of these `sizes`. `kind`: attention, or its backward pass. Errors: Refused."""
    q, k = operands["q"], operands["k"]
    check_served(kind, membership, {**operands, "q": q.unsqueeze(0)}, call)
    if sizes.sequences > MOST_SEQUENCES:
        text = f"a rank has {sizes.sequences} parts of sequences; mkernel takes at most {MOST_SEQUENCES}"
        raise Refused(f"more than {MOST_SEQUENCES} parts of sequences", text)
    executor, sms = executor_of(q.device, options)
    rows, sequences, keys = (bucket_of(count, options.buckets) for count in (q.shape[0], *sizes))
    key = AttentionKey(kind, 1, rows, q.shape[1], k.shape[1], q.shape[2], call.causal, call.scale or 0.0, DTYPES[q.dtype], executor,
                       sms, keys, sequences)
    copies = ("k, v: rows of all ranks are gathered, and copied in the order of the sequences",)
    return AttentionDecision(key, copies if q.is_contiguous() else (f"q: it is not dense (strides {q.stride()})", *copies))


def _attend(membership: Membership, packing: Packing, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: Call, out: torch.Tensor,
            lse: torch.Tensor) -> None:
    options, operands = current(), {"q": q, "k": k, "v": v}
    with membership.lock:
        decision = decide(ALONE, membership, operands, packing.sizes, call, options)
        wide = _wide(lse, _rows_of(decision))
        launch(membership, decision, {**operands, **_lengths(packing, decision)}, {"out": out, "lse": wide}, options)
    if wide is not lse:
        lse.copy_(wide[:, : lse.shape[1]])


def _rows_of(decision: AttentionDecision) -> int:
    assert decision.key is not None
    return decision.key.sequence


def _wide(lse: torch.Tensor, rows: int) -> torch.Tensor:
    """An operation for more rows reads none of the others of q, but has lse with its own number of columns."""
    return lse if rows == lse.shape[1] else torch.nn.functional.pad(lse, (0, rows - lse.shape[1]), value=float("-inf"))


def _lengths(packing: Packing, decision: AttentionDecision) -> "dict[str, torch.Tensor]":
    assert decision.key is not None and decision.key.max_sequences is not None
    entries = decision.key.max_sequences + 1
    return {"cu_seqlens_q": _padded(packing.cu_seqlens_q, entries), "cu_seqlens_k": _padded(packing.cu_seqlens_k, entries)}


def _padded(cu_seqlens: torch.Tensor, entries: int) -> torch.Tensor:
    """The last one is repeated, which makes sequences without rows."""
    return torch.cat((cu_seqlens, cu_seqlens[-1:].expand(entries - cu_seqlens.shape[0])))


def _batch(*tensors: torch.Tensor) -> "tuple[torch.Tensor, ...]":
    """Each as a batch of one."""
    return tuple(tensor.unsqueeze(0) for tensor in tensors)


# ---- gradients


def ring_attention_varlen_backward(d_out: Optional[torch.Tensor], d_lse: Optional[torch.Tensor], q: torch.Tensor, k: torch.Tensor,
                                   v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, cu_seqlens: torch.Tensor, causal: bool,
                                   scale: Optional[float], group_name: str, *, zigzag: bool = True) -> Gradients:
    totals[BACKWARD] += 1
    call = Call(causal, scale, 0, zigzag)
    _check(q, k, v, cu_seqlens, call, group_name)
    packing = _packing(q, cu_seqlens, call, group_name)
    of_q, of_k, of_v = _gradients_like(q, k, v)
    of_q.zero_()
    if 0 in (q.numel(), *packing.sizes):
        return of_q, of_k.zero_(), of_v.zero_()
    packed_k, packed_v = _packed(packing, k, v, group_name)
    # One row more: of keys that a part does not see.
    sums_k, sums_v = (x.new_zeros(packing.sizes.keys + 1, *x.shape[1:], dtype=lse.dtype) for x in (packed_k, packed_v))
    try:
        operands = backward_operands(d_out, d_lse, {"q": q, "k": packed_k, "v": packed_v}, out, lse)
        _differentiate(alone_on(q.device), packing, operands, call, of_q, sums_k, sums_v)
    except (Refused, NotInitialized) as error:
        count_fallback(f"{BACKWARD}: {error.reason}", group_name)
        d_out = torch.zeros_like(out) if d_out is None else d_out
        for queries, keys in packing.ranges():
            of_lse = None if d_lse is None else d_lse[None, :, queries]
            saved = _attention_torch.Saved(*_batch(q[queries], out[queries], lse[:, queries], d_out[queries]), of_lse)
            some_q, some_k, some_v = _attention_torch.sums_of_gradients(saved, *_batch(packed_k[keys], packed_v[keys]), call)
            of_q[queries], sums_k[keys], sums_v[keys] = some_q[0], some_k[0], some_v[0]
    held, world = packing.packed_keys(), resolve(group_name).size()
    for gradient, sums in ((of_k, sums_k), (of_v, sums_v)):
        by_part = [sums.index_select(0, rows) for rows in held]
        gradient.copy_(_run.scatter(sum(by_part[1:], by_part[0]), "sum", world, group_name))
    return of_q, of_k, of_v


def _differentiate(membership: Membership, packing: Packing, operands: Operands, call: Call, of_q: torch.Tensor, sums_k: torch.Tensor,
                   sums_v: torch.Tensor) -> None:
    """Into `of_q`, and into the rows of all keys but the last one of the sums."""
    options, kind = current(), BACKWARD_KINDS[ALONE]
    with membership.lock:
        decision = decide(kind, membership, operands, packing.sizes, call, options)
        d_k, d_v = (torch.zeros_like(operands[name], memory_format=torch.contiguous_format) for name in ("k", "v"))
        given = {**operands, "lse": _wide(operands["lse"], _rows_of(decision)), **_lengths(packing, decision)}
        launch(membership, decision, given, {"d_q": of_q, "d_k": d_k, "d_v": d_v}, options)
    sums_k[:-1], sums_v[:-1] = d_k, d_v


def _gradients_like(*operands: torch.Tensor) -> Gradients:
    of_q, of_k, of_v = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in operands)
    return of_q, of_k, of_v


def _setup(ctx: Any, inputs: "tuple[Any, ...]", output: Any, keyword_only_inputs: "dict[str, Any]") -> None:
    q, k, v, cu_seqlens, *ctx.call = inputs
    ctx.keywords = keyword_only_inputs
    ctx.save_for_backward(q, k, v, *output, cu_seqlens)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, d_out: Optional[torch.Tensor], d_lse: Optional[torch.Tensor]) -> Any:
    found = torch.ops.mkernel.ring_attention_varlen_backward(d_out, d_lse, *ctx.saved_tensors, *ctx.call, **ctx.keywords)
    return (*found, None, *(None for _ in ctx.call))


# ---- shapes


def _results(q: torch.Tensor) -> Result:
    return q.new_empty(q.shape), q.new_empty((q.shape[1], q.shape[0]), dtype=_attention_torch.sum_dtype(q.dtype))


def _fake(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens: torch.Tensor, causal: bool, scale: Optional[float],
          group_name: str, *, zigzag: bool = True) -> Result:
    check_varlen(q, k, v, cu_seqlens, Call(causal, scale, 0, zigzag))
    return _results(q)


def _fake_backward(d_out: Optional[torch.Tensor], d_lse: Optional[torch.Tensor], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
                   *rest: Any, **keywords: Any) -> Gradients:
    return _gradients_like(q, k, v)


_Library: Any = torch.library.Library  # which has no types
_library = _Library("mkernel", "FRAGMENT")
_library.define(NAME + SCHEMAS[NAME], tags=[torch.Tag.needs_fixed_stride_order])
_library.define(BACKWARD + _BACKWARD_SCHEMA, tags=[torch.Tag.needs_fixed_stride_order])
for _key in ("CPU", "CUDA"):
    _library.impl(NAME, ring_attention_varlen, _key)
    _library.impl(BACKWARD, ring_attention_varlen_backward, _key)
torch.library.register_fake(f"mkernel::{NAME}", _fake, lib=_library)
torch.library.register_fake(f"mkernel::{BACKWARD}", _fake_backward, lib=_library)
torch.library.register_autograd(f"mkernel::{NAME}", _backward, setup_context=_setup, lib=_library)
_autocast.register(_library, NAME, ("q", "k", "v"))
_library.impl(BACKWARD, refuse_gradients(BACKWARD), "Autograd", with_keyset=True)
