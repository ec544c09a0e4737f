"""PyTorch's context parallelism (torch.distributed.tensor.experimental.context_parallel) on mkernel, by a patch of the two inner
functions that its attention operators share."""

import functools
import importlib
import inspect
from types import ModuleType
from typing import Any, Callable, Optional, Sequence

import torch

from mkernel.errors import Unimplemented
from mkernel.torch._groups import NotInitialized, count_fallback, membership_of

FORWARD, BACKWARD = "_templated_ring_attention", "_templated_ring_attention_backward"
# Where PyTorch 2.11 and 2.15 have them, and where older ones do.
_MODULES = ("torch.distributed.tensor.experimental._context_parallel._attention", "torch.distributed.tensor.experimental._attention")
_SEQ_DIM = 2  # of [batch, heads, sequence, head_dim], which is all that PyTorch has
# What the operators of ATen return behind the result and its log-sum-exp, for a backward pass of theirs: whether cum_seq_q, cum_seq_k,
# max_q and max_k come first, and how many tensors follow (of random numbers, which there are none of); and whether the log-sum-exp has
# a last dimension of 1.
_RESTS: "dict[str, tuple[bool, int, bool]]" = {
    "aten::_scaled_dot_product_flash_attention": (True, 3, False),
    "aten::_scaled_dot_product_efficient_attention": (False, 2, False),
    "aten::_scaled_dot_product_cudnn_attention": (True, 3, True),
    "aten::_scaled_dot_product_flash_attention_for_cpu": (False, 0, False),
}
# Arguments of those operators, with the values that change nothing.
_OFF: "dict[str, tuple[Any, ...]]" = {
    "dropout_p": (0.0,),
    "attn_bias": (None,),
    "attn_mask": (None,),
    "return_debug_mask": (False,),
    "compute_log_sumexp": (True, False),
}


def templated_ring_attention(group: Any, seq_dim: int, op: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                             is_causal: bool = False, **kwargs: Any) -> "tuple[Any, ...]":
    """The inner function of PyTorch's context parallelism, with the call and the results of its own: (out, lse, whatever else `op`
    returns). query [batch, heads, positions, head_dim] is this rank's part of the sequence: causal, with PyTorch's load balancing
    (the default) head and tail, which is zigzag, else contiguous.

    Runs torch.ops.mkernel.ring_attention, which says what it leaves to PyTorch. Calls with other arguments, or without init(), go to
    PyTorch's own and are counted with their reason in counters()["fallbacks"]. Errors: those of the operator and of PyTorch's own."""
    module = _module()
    reason = _refusal(module, group, seq_dim, op, query, key, is_causal, kwargs)
    if reason:
        count_fallback(f"{FORWARD}: {reason}", _name(group))
        own: Any = _own(module, FORWARD)
        return tuple(own(group, seq_dim, op, query, key, value, is_causal, **kwargs))
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    out, lse = torch.ops.mkernel.ring_attention(q, k, v, is_causal, kwargs.get("scale"), group.group_name)
    lengths, tensors, lse_has_column = _RESTS[_op_name(op)]
    rest: "list[Any]" = [None, None, query.shape[_SEQ_DIM], key.shape[_SEQ_DIM]] if lengths else []
    rest += [query.new_zeros((), dtype=torch.int64) for _ in range(tensors)]
    return out.transpose(1, 2), lse.unsqueeze(-1) if lse_has_column else lse, *rest


def templated_ring_attention_backward(group: Any, seq_dim: int, op: Any, grad_out: torch.Tensor, grad_out_name: str, query: torch.Tensor,
                                      key: torch.Tensor, value: torch.Tensor, out: torch.Tensor, logsumexp: torch.Tensor,
                                      is_causal: bool, **kwargs: Any) -> "tuple[Any, ...]":
    """The backward pass of templated_ring_attention(), which has to have made `out` and `logsumexp` where it did not fall back:
    (gradients of query, key, value). Otherwise as that."""
    module = _module()
    forward_op = _op_name(op).removesuffix("_backward")
    reason = _refusal(module, group, seq_dim, forward_op, query, key, is_causal, kwargs)
    if reason:
        count_fallback(f"{BACKWARD}: {reason}", _name(group))
        own: Any = _own(module, BACKWARD)
        found = own(group, seq_dim, op, grad_out, grad_out_name, query, key, value, out, logsumexp, is_causal, **kwargs)
        return tuple(found)
    lse = logsumexp.squeeze(-1) if logsumexp.dim() == query.dim() else logsumexp[..., : query.shape[_SEQ_DIM]]
    q, k, v, result, d_out = (x.transpose(1, 2) for x in (query, key, value, out, grad_out))
    of_all = torch.ops.mkernel.ring_attention_backward(d_out, None, q, k, v, result, lse, is_causal, kwargs.get("scale"), group.group_name)
    gradients: "list[Any]" = [x.transpose(1, 2) for x in of_all]
    return *gradients, *_more_gradients(forward_op)


def _more_gradients(forward_op: str) -> "Sequence[Any]":
    """The efficient operator also has a bias, whose gradient comes last."""
    return (None,) if forward_op == "aten::_scaled_dot_product_efficient_attention" else ()


def patch_context_parallel() -> None:
    """From now on PyTorch's context_parallel() and _context_parallel_shard() run templated_ring_attention() and its backward
    pass. mkernel.torch.init() must have been called for the process group of the mesh; without it PyTorch's own runs. A second call
    does nothing. Errors: Unimplemented (a PyTorch whose functions are not known, as 2.8)."""
    module = _module()
    for name, ours in _OURS.items():
        theirs = getattr(module, name)
        if theirs is not ours:
            ours.replaced_by_mkernel = theirs  # type: ignore[attr-defined]
            setattr(module, name, ours)


def unpatch_context_parallel() -> None:
    """Undoes patch_context_parallel()."""
    module = _module()
    for name, ours in _OURS.items():
        if getattr(module, name) is ours:
            setattr(module, name, _own(module, name))


_OURS: "dict[str, Callable[..., Any]]" = {FORWARD: templated_ring_attention, BACKWARD: templated_ring_attention_backward}


def _own(module: ModuleType, name: str) -> Any:
    """PyTorch's, patched or not."""
    found = getattr(module, name)
    return _OURS[name].replaced_by_mkernel if found is _OURS[name] else found  # type: ignore[attr-defined]


@functools.lru_cache(None)
def _module() -> ModuleType:
    for name in _MODULES:
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        functions = [getattr(module, needed, None) for needed in (FORWARD, BACKWARD)]
        if hasattr(module, "_cp_options") and all(f is not None and "group" in inspect.signature(f).parameters for f in functions):
            return module
    raise Unimplemented(
        f"PyTorch {torch.__version__} has no {FORWARD}(group, ...) where mkernel looks for it: {', '.join(_MODULES)}; known are 2.11 and 2.15"
    )


def _name(group: Any) -> Optional[str]:
    return str(group.group_name) if hasattr(group, "group_name") else None


def _op_name(op: Any) -> str:
    return op if isinstance(op, str) else str(getattr(op, "_qualified_op_name", None) or op._schema.name)


def _refusal(module: ModuleType, group: Any, seq_dim: int, op: Any, query: torch.Tensor, key: torch.Tensor, is_causal: bool,
             kwargs: "dict[str, Any]") -> str:
    """Why mkernel does not serve the call; "": it does."""
    options: Any = module._cp_options
    if seq_dim != _SEQ_DIM:
        return f"seq_dim is not {_SEQ_DIM}"
    if _op_name(op) not in _RESTS:
        return f"operator {_op_name(op)}"
    for name, value in kwargs.items():
        if name in _OFF and value not in _OFF[name]:
            return f"{name} is set"
    if query.shape[_SEQ_DIM] != key.shape[_SEQ_DIM]:
        return "query and key have other lengths"
    if is_causal and not options.enable_load_balance:
        return "causal over contiguous parts"
    if options.enable_load_balance and not is_causal:
        return "load balancing without is_causal"  # PyTorch's own refuses it
    if is_causal and query.shape[_SEQ_DIM] % 2:
        return "an odd number of positions"
    try:
        membership_of(str(group.group_name))
    except NotInitialized as error:
        return error.reason
    return ""
