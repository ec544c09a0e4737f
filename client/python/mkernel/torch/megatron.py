"""Megatron-LM's column-parallel layers on mkernel, by a patch of the one function that they all call."""

import functools
import inspect
from types import ModuleType
from typing import Any, Callable, Optional

import torch

from mkernel.errors import FailedPrecondition
from mkernel.torch._autocast import type_under
from mkernel.torch._decide import DTYPES
from mkernel.torch._groups import NotInitialized, count_fallback, membership_of

FUNCTION = "linear_with_grad_accumulation_and_async_allreduce"
# The parameters that our function serves, and values of the other parameters that change nothing. Any further parameter must have
# its default.
_SERVED = {"input", "weight", "bias", "sequence_parallel", "tp_group", "wgrad_deferral_limit", "async_grad_allreduce"}
_OFF: "dict[str, tuple[Any, ...]]" = {
    "gradient_accumulation_fusion": (False, None),
    "allreduce_dgrad": (False, None),
    "grad_output_buffer": (None,),
    "gtp_remat_size": (None, 0, 1),
    "output_dtype": (None,),
}


def patch_megatron(layers: Optional[ModuleType] = None) -> None:
    """Replaces linear_with_grad_accumulation_and_async_allreduce in `layers` (None: megatron.core.tensor_parallel.layers). With
    sequence_parallel it runs AllGather+GEMM, and backward GEMM+ReduceScatter with the input gathered again for the weight. Every
    other call, and one that asks for what mkernel does not have, goes to Megatron's own and is counted with its reason in
    counters()["fallbacks"]; `mkctl sessions` shows the sum. mkernel.torch.init() must have been called for the tensor-parallel
    group. A second call does nothing."""
    layers = _layers(layers)
    original = getattr(layers, FUNCTION, None)
    if original is None:
        raise FailedPrecondition(f"{layers.__name__} has no {FUNCTION}: this version of Megatron is not known")
    if not hasattr(original, "replaced_by_mkernel"):
        setattr(layers, FUNCTION, _replacement(layers, original))


def unpatch_megatron(layers: Optional[ModuleType] = None) -> None:
    """Undoes patch_megatron()."""
    layers = _layers(layers)
    original = getattr(getattr(layers, FUNCTION, None), "replaced_by_mkernel", None)
    if original is not None:
        setattr(layers, FUNCTION, original)


def _layers(layers: Optional[ModuleType]) -> ModuleType:
    if layers is not None:
        if not isinstance(layers, ModuleType):
            raise TypeError(f"layers = {layers!r} is not a module")
        return layers
    try:
        import megatron.core.tensor_parallel.layers as found  # type: ignore[import-not-found]
    except ImportError as error:
        raise FailedPrecondition(f"Megatron cannot be imported: {error}; install megatron-core, or pass its module") from None
    return found  # type: ignore[no-any-return]


def _replacement(layers: ModuleType, original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def linear(*arguments: Any, **keywords: Any) -> Any:
        bound = signature.bind(*arguments, **keywords)
        bound.apply_defaults()
        values = bound.arguments
        reason, group_name = _refusal(layers, signature, values)
        if reason:
            # Not that of the default group: asking Megatron for it may warn, or raise.
            group = values.get("tp_group")
            count_fallback(f"{FUNCTION}: {reason}", None if group is None else str(group.group_name))
            return original(*arguments, **keywords)
        weight, bias = values["weight"], values.get("bias")
        _, (y,) = torch.ops.mkernel.fused_all_gather_matmul(values["input"], [weight.t()], 0, group_name, return_A=False)
        return y if bias is None else y + bias.to(y.dtype)

    linear.replaced_by_mkernel = original  # type: ignore[attr-defined]
    return linear


def _refusal(layers: ModuleType, signature: inspect.Signature, values: "dict[str, Any]") -> "tuple[str, str]":
    """(why mkernel does not serve the call, ""), or ("", the name of the process group)."""
    if not values.get("sequence_parallel"):
        return "sequence_parallel is off", ""
    for name, value in values.items():
        if name in _SERVED:
            continue
        allowed = _OFF.get(name, (signature.parameters[name].default,))
        if not any(value is off or (isinstance(off, int) and value == off) for off in allowed):
            return f"{name} is set", ""
    for tensor in (values["input"], values["weight"]):
        dtype = type_under(tensor)
        if dtype not in DTYPES or dtype != type_under(values["input"]):
            return f"dtype {dtype}", ""
    group = values.get("tp_group")
    if group is None:
        default = getattr(layers, "get_tensor_model_parallel_group_if_none", None)
        group = default(None) if default is not None else None
    if group is None:
        return "tp_group is not given", ""
    try:
        membership_of(str(group.group_name))
    except NotInitialized as error:
        return error.reason, ""
    return "", str(group.group_name)
