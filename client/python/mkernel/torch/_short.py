"""The short way of a call like one before: one lookup, one allocation for each result, one launch.

A call on tensors of a GPU that needed no copy and no padding is remembered: what it launches, and the shapes of its results. The
next call with the same operator, process group, shapes, strides, types and device goes this way. Whatever could change the answer
forgets all of them: other options, plans that are dropped, groups that end. A call that changes streams or is captured by a graph
takes the long way, which knows what to do."""

from ctypes import c_void_p
from typing import Any, NamedTuple, Optional, Sequence

import torch

from mkernel._calls import check
from mkernel._library import lib
from mkernel._operands import GPU_ALIGNMENT
from mkernel._operation import Operation
from mkernel.torch._decide import Decision
from mkernel.torch._groups import Membership, raw_stream
from mkernel.torch._options import Options, remembered, totals
from mkernel.torch._plans import Plan

DEVICE = "cuda"  # whose tensors' calls are remembered
_is_capturing: Any = getattr(torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing)
_enqueue: Any = lib.without_prototype("mk_gemm_enqueue")

Found = tuple[Optional[torch.Tensor], list[torch.Tensor]]


class _Call(NamedTuple):
    membership: Membership
    plan: Plan
    operation: Operation
    handle: c_void_p
    arguments: Any
    more_b: Any  # of the arguments
    more_c: Any
    by_reference: Any  # of the arguments
    options: Any
    fused: "tuple[int, ...]"  # the B in the order of the operation
    shapes: "tuple[tuple[int, ...], ...]"  # of the results, in the order of the B
    gathered: "Optional[tuple[int, ...]]"  # shape of the gathered A; None: nobody wants it


def _key(name: str, group_name: str, a: torch.Tensor, b: torch.Tensor, more: "Sequence[torch.Tensor]", gathered: bool) -> Any:
    key = (name, group_name, gathered, a.shape, a.stride(), a.dtype, a.get_device(), b.shape, b.stride(), b.dtype, b.get_device())
    return (key, *[(x.shape, x.stride(), x.dtype, x.get_device()) for x in more]) if more else key


def remember(name: str, group_name: str, a: torch.Tensor, bs: "Sequence[torch.Tensor]", membership: Membership, decision: Decision,
             options: Options, shapes: "tuple[tuple[int, ...], ...]", gathered: "Optional[tuple[int, ...]]" = None) -> None:
    """Of a call that was made just now and may go this way. With the membership's lock, so that the plan is still there."""
    assert decision.key is not None
    plan = membership.plans[decision.key]
    launch, handle = plan.launch(options), plan.operation._handle
    assert handle is not None
    arguments = launch._arguments
    remembered[_key(name, group_name, a, bs[0], bs[1:], gathered is not None)] = _Call(
        membership, plan, plan.operation, c_void_p(handle.pointer), arguments, arguments.more_b, arguments.more_c, launch._by_reference,
        launch._options, decision.fused, shapes, gathered
    )


def call(name: str, group_name: str, a: torch.Tensor, b: torch.Tensor, more: "Sequence[torch.Tensor]" = (),
         gathered: bool = False) -> "Optional[Found]":
    """(gathered A, the results of b and of `more`), or None: the call has to go the long way."""
    found: Optional[_Call] = remembered.get(_key(name, group_name, a, b, more, gathered)) if remembered else None
    if found is None:
        return None
    membership, plan, operation, handle, arguments, more_b, more_c, by_reference, options, fused, shapes, gathered_shape = found
    stream = raw_stream(membership.device)
    address_a, address_b = a.data_ptr(), b.data_ptr()
    if (address_a | address_b) % GPU_ALIGNMENT or not membership.is_current():
        return None
    with membership.lock:
        if membership.last_stream != stream or _is_capturing() or operation._handle is None:
            return None
        c = a.new_empty(*shapes[0])
        full = None if gathered_shape is None else a.new_empty(*gathered_shape)
        arguments.a, arguments.gathered = address_a, None if full is None else full.data_ptr()
        if more:
            addresses, results = [address_b, *[x.data_ptr() for x in more]], [c, *[a.new_empty(*shape) for shape in shapes[1:]]]
            if any(address % GPU_ALIGNMENT for address in addresses):
                return None
            arguments.b, arguments.c = addresses[fused[0]], results[fused[0]].data_ptr()
            for place, index in enumerate(fused[1:]):
                more_b[place], more_c[place] = addresses[index], results[index].data_ptr()
        else:
            results = [c]
            arguments.b, arguments.c = address_b, c.data_ptr()
        membership.plans.use(plan)
        status = _enqueue(handle, by_reference, membership.last_stream_argument, options)
        if status:
            check(status)
    totals[name] += 1
    totals["plans_hit"] += 1
    totals["launches"] += 1
    return full, results
