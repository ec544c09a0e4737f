"""The short way of a call like one before: one lookup, one allocation for each result, one launch.

A call on tensors of a GPU that needed no copy and no padding is remembered: what it launches, and the shapes of its results. The
next call with the same operator, process group, shapes, strides, types and device goes this way. Whatever could change the answer
forgets all of them: other options, plans that are dropped, groups that end. A call that changes streams or is captured by a graph
takes the long way, which knows what to do.

Where the extension in C++ is built (_extension.py), it remembers the same calls and takes them before this file sees them.

Every line of call() is paid for by every call (tests/perf/notes.md has what they cost). So it calls few functions, uses tuples that
were made before, and allocates without torch's dispatcher."""

from ctypes import c_void_p
from typing import Any, NamedTuple, Optional, Sequence

import torch

from mkernel._calls import check
from mkernel._library import lib
from mkernel._operands import GPU_ALIGNMENT
from mkernel._operation import Operation
from mkernel.torch import _extension
from mkernel.torch._decide import Decision
from mkernel.torch._groups import Membership, raw_stream
from mkernel.torch._options import Options, remembered, repeated
from mkernel.torch._plans import Plan

DEVICE = "cuda"  # whose tensors' calls are remembered here
extension = _extension.extension  # which remembers calls on the cpu executor, too
_is_capturing: Any = getattr(torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing)
_current_device: Any = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
# How compiled code allocates: memory of the current device, in half the time of new_empty().
_empty: Any = getattr(getattr(getattr(torch._C, "_dynamo", None), "guards", None), "_empty_strided_cuda", None)
_enqueue: Any = lib.without_prototype("mk_gemm_enqueue")

Found = tuple[Optional[torch.Tensor], list[torch.Tensor]]


class _Result(NamedTuple):
    """What _empty() makes a dense tensor of."""

    shape: "tuple[int, ...]"
    strides: "tuple[int, ...]"
    dtype: torch.dtype


def _result(shape: "tuple[int, ...]", dtype: torch.dtype) -> _Result:
    return _Result(shape, torch.empty(shape, device="meta").stride(), dtype)


def is_queued(operation: Operation) -> bool:
    """Whether its launches are queued on a stream, and not waited for."""
    return operation.executor == "cuda"


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
    result: _Result  # of the first B
    more_results: "tuple[_Result, ...]"  # of the other B
    gathered: Optional[_Result]  # None: nobody wants the gathered A


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
    if extension is not None:
        description = _extension.describe(membership.lock, handle, launch, decision.fused, membership.plans.uses, plan.last_used)
        if is_queued(plan.operation):
            _extension.queue(description)
        extension.remember(name, group_name, a, bs, gathered is not None, shapes[0][:-1], description)
    if a.device.type != DEVICE:
        return
    arguments = launch._arguments
    result, *more_results = (_result(shape, a.dtype) for shape in shapes)
    remembered[_key(name, group_name, a, bs[0], bs[1:], gathered is not None)] = _Call(
        membership, plan, plan.operation, c_void_p(handle.pointer), arguments, arguments.more_b, arguments.more_c, launch._by_reference,
        launch._options, decision.fused, result, tuple(more_results), None if gathered is None else _result(gathered, a.dtype)
    )


def call(name: str, group_name: str, a: torch.Tensor, b: torch.Tensor, more: "Sequence[torch.Tensor]" = (),
         gathered: bool = False) -> "Optional[Found]":
    """(gathered A, the results of b and of `more`), or None: the call has to go the long way."""
    found: Optional[_Call] = remembered.get(_key(name, group_name, a, b, more, gathered)) if remembered else None
    if found is None:
        return None
    membership, plan, operation, handle, arguments, more_b, more_c, by_reference, options, fused, result, more_results, rows = found
    device = membership.device
    stream = raw_stream(device)
    address_a, address_b = a.data_ptr(), b.data_ptr()
    if (address_a | address_b) % GPU_ALIGNMENT or not membership.is_current():
        return None
    empty: Any = _empty if _empty is not None and _current_device() == device else lambda shape, *_: a.new_empty(shape)
    with membership.lock:
        if membership.last_stream != stream or _is_capturing() or operation._handle is None:
            return None
        c = empty(*result)
        full = None if rows is None else empty(*rows)
        arguments.a, arguments.gathered = address_a, None if full is None else full.data_ptr()
        if more:
            addresses = [address_b, *[x.data_ptr() for x in more]]
            if any(address % GPU_ALIGNMENT for address in addresses):
                return None
            results = [c, *[empty(*other) for other in more_results]]
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
    repeated[name] += 1
    return full, results
