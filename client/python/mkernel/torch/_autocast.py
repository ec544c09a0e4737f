"""Autocast: under torch.autocast() the operators cast their operands as torch.nn.functional.linear does.

Operands of products that are floating-point, on the device that the context is for, and not float64, are cast to the context's type.
The cast is differentiable, so a gradient has the type of the parameter. Other operands keep their types: routing weights, which are
float32, indices, and log-sum-exps. The operators of backward passes are not cast: they get what the forward pass had."""

from typing import Any, Sequence

import torch

DEVICES = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}
_type_of: Any = getattr(torch, "get_autocast_dtype")  # which has no types


_operands: "dict[str, frozenset[str]]" = {}  # by operator: the fields of its schema that are cast


def register(library: Any, name: str, operands: "Sequence[str]") -> None:
    """For the operator `name` of `library`, after it is defined. `operands`: the fields of its schema that are cast."""
    operator = getattr(torch.ops.mkernel, name).default
    fields = [argument.name for argument in operator._schema.arguments]
    assert set(operands) <= set(fields), f"{name} has {fields}, not {operands}"
    _operands[name] = frozenset(operands)
    for device, key in DEVICES.items():
        library.impl(name, _kernel(operator, name, fields, device, key), key, with_keyset=True)


def _kernel(operator: Any, name: str, fields: "list[str]", device: str, key: str) -> Any:
    without = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    operands = _operands[name]
    cast = [field in operands for field in fields]

    def kernel(keyset: Any, *arguments: Any, **keywords: Any) -> Any:
        wanted = _type_of(device)
        positional = [_cast(value, wanted, device) if is_cast else value for value, is_cast in zip(arguments, cast)]
        named = {field: _cast(value, wanted, device) if field in operands else value for field, value in keywords.items()}
        with torch._C._ExcludeDispatchKeyGuard(without):
            return operator(*positional, **named)

    return kernel


def _cast(value: Any, wanted: torch.dtype, device: str) -> Any:
    """A tensor, a list of them, or None."""
    if isinstance(value, (list, tuple)):
        return [_cast(element, wanted, device) for element in value]
    if not isinstance(value, torch.Tensor) or value.device.type != device or value.dtype == wanted:
        return value
    return value.to(wanted) if _is_cast(value.dtype) else value


def _is_cast(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and dtype != torch.float64


def type_under(tensor: torch.Tensor) -> torch.dtype:
    """The type that an operator gets of the operand `tensor` when it is called now."""
    device, dtype = tensor.device.type, tensor.dtype
    if device not in DEVICES or not torch.is_autocast_enabled(device) or not _is_cast(dtype):
        return dtype
    wanted: torch.dtype = _type_of(device)
    return wanted


def applied(name: str, values: "dict[str, Any]") -> "dict[str, Any]":
    """The arguments of the operator `name` as it gets them when it is called now; each operand is cast, if it is."""
    for device in DEVICES:
        if torch.is_autocast_enabled(device):
            wanted, operands = _type_of(device), _operands.get(name, frozenset())
            values = {field: _cast(value, wanted, device) if field in operands else value for field, value in values.items()}
    return values
