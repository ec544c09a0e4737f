"""The short way of a call like one before: one lookup, one allocation, one launch.

A call on tensors of a GPU that needed no copy and no padding is remembered: what it launches, and the shape of its result. The
next call with the same operator, process group, shapes, strides, types and device goes this way. Whatever could change the answer
forgets all of them: other options, plans that are dropped, groups that end. A call that changes streams or is captured by a graph
takes the long way, which knows what to do."""

from typing import Any, NamedTuple, Optional

import torch

from mkernel._calls import check
from mkernel._operands import GPU_ALIGNMENT
from mkernel.torch._groups import Membership, raw_stream
from mkernel.torch._options import Options, remembered, totals
from mkernel.torch._plans import GemmKey, Plan

_is_capturing: Any = getattr(torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing)


class _Call(NamedTuple):
    membership: Membership
    key: GemmKey
    plan: Plan
    enqueue: Any  # of the library
    arguments: Any
    by_reference: Any  # of the arguments
    options: Any
    shape: "tuple[int, ...]"  # of the result
    gathered: "Optional[tuple[int, ...]]"  # shape of the gathered A; None: nobody wants it


def _key(name: str, group_name: str, a: torch.Tensor, b: torch.Tensor, gathered: bool) -> "tuple[Any, ...]":
    return (name, group_name, gathered, a.shape, a.stride(), a.dtype, a.get_device(), b.shape, b.stride(), b.dtype, b.get_device())


def remember(name: str, group_name: str, a: torch.Tensor, b: torch.Tensor, membership: Membership, key: GemmKey,
             options: Options, shape: "tuple[int, ...]", gathered: "Optional[tuple[int, ...]]" = None) -> None:
    """Of a call that was made just now and may go this way. With the membership's lock, so that the plan is still there."""
    plan = membership.plans[key]
    launch = plan.launch(options)
    remembered[_key(name, group_name, a, b, gathered is not None)] = _Call(
        membership, key, plan, launch._enqueue, launch._arguments, launch._by_reference, launch._options, shape, gathered
    )


def call(name: str, group_name: str, a: torch.Tensor, b: torch.Tensor,
         gathered: bool = False) -> "Optional[tuple[torch.Tensor, Optional[torch.Tensor]]]":
    """(result, gathered A), or None: the call has to go the long way."""
    found: Optional[_Call] = remembered.get(_key(name, group_name, a, b, gathered)) if remembered else None
    if found is None:
        return None
    membership, key, plan, enqueue, arguments, by_reference, options, shape, gathered_shape = found
    stream = raw_stream(membership.device)
    address_a, address_b = a.data_ptr(), b.data_ptr()
    if (address_a | address_b) % GPU_ALIGNMENT or not membership.is_current():
        return None
    with membership.lock:
        handle = plan.operation._handle
        if membership.last_stream != stream or _is_capturing() or handle is None:
            return None
        c = a.new_empty(shape)
        full = None if gathered_shape is None else a.new_empty(gathered_shape)
        arguments.a, arguments.b, arguments.c = address_a, address_b, c.data_ptr()
        arguments.gathered = None if full is None else full.data_ptr()
        membership.plans.use(key)
        status = enqueue(handle.pointer, by_reference, stream, options)
        if status:
            check(status)
    totals[name] += 1
    totals["plans_hit"] += 1
    totals["launches"] += 1
    return c, full
