"""patch_symm_mem(): mkernel behind the operators of torch.ops.symm_mem, and PyTorch's own for what mkernel does not have."""

import contextlib
import threading
from typing import Any, Callable, Optional

import torch
import torch.distributed.distributed_c10d as c10d

from mkernel.errors import Unimplemented
from mkernel.torch import _run
from mkernel.torch._decide import DIMENSIONS, KINDS, Refused, check
from mkernel.torch._groups import NotInitialized, count_fallback

FUSED: "dict[str, Callable[..., Any]]" = {
    "fused_all_gather_matmul": _run.all_gather_matmul,
    "fused_matmul_reduce_scatter": _run.matmul_reduce_scatter,
}
SCALED = ("fused_all_gather_scaled_matmul", "fused_all_gather_block_scaled_matmul", "fused_scaled_matmul_reduce_scatter")


class _State:
    library: Any = None
    lock = threading.Lock()


def is_patched() -> bool:
    return _State.library is not None


def patch_symm_mem() -> None:
    """From now on torch.ops.symm_mem.fused_all_gather_matmul and fused_matmul_reduce_scatter run on mkernel, so that Inductor's
    pass for asynchronous tensor parallelism and other callers use it. What mkernel does not have runs as before and is counted with
    its reason (counters()["fallbacks"]; `mkctl sessions` shows the sum): the scaled operators, other data types and devices, the
    last dimension, process groups without init(). A second call does nothing. Errors: Unimplemented (PyTorch before 2.9)."""
    import torch.distributed._symmetric_memory  # noqa: F401: defines the operators

    if not hasattr(torch.library, "get_kernel"):
        raise Unimplemented(f"patch_symm_mem needs PyTorch 2.9 or newer, this is {torch.__version__}")

    with _State.lock:
        if _State.library is not None:
            return
        new: Any = torch.library.Library  # which has no types
        library = new("symm_mem", "IMPL")
        for name, ours in FUSED.items():
            for key in ("CPU", "CUDA"):
                theirs = _kernel(name, key) or (_in_host_memory(name) if key == "CPU" else None)
                if theirs is not None:
                    library.impl(name, _with_fallback(name, ours, theirs), key, allow_override=True)
        for name in SCALED:
            theirs = _kernel(name, "CUDA")
            if theirs is not None:
                library.impl(name, _counted(name, theirs), "CUDA", allow_override=True)
        _State.library = library


def unpatch_symm_mem() -> None:
    """Undoes patch_symm_mem(); without one before it does nothing."""
    with _State.lock:
        library, _State.library = _State.library, None
        if library is not None:
            library._destroy()


def _kernel(name: str, key: str) -> Optional[Callable[..., Any]]:
    """What is registered now; None: nothing, or this PyTorch has no such operator."""
    qualified = f"symm_mem::{name}"
    if not hasattr(torch.ops.symm_mem, name) or not torch._C._dispatch_has_kernel_for_dispatch_key(qualified, key):
        return None
    kernel = torch.library.get_kernel(qualified, key)
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    return lambda *arguments, **keywords: kernel.call_boxed(keys, *arguments, **keywords)


def _group_of(name: str) -> "Callable[[tuple[Any, ...], dict[str, Any]], Optional[str]]":
    """Finds the name of the process group among the arguments of a call."""
    names = [argument.name for argument in getattr(torch.ops.symm_mem, name).default._schema.arguments]
    place = names.index("group_name")
    return lambda given, named: named.get("group_name", given[place] if place < len(given) else None)


def _with_fallback(name: str, ours: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    group_of = _group_of(name)

    def call(*arguments: Any, **keywords: Any) -> Any:
        try:
            return ours(*arguments, **keywords)
        except (Refused, NotInitialized) as error:
            count_fallback(f"{name}: {error.reason}", group_of(arguments, keywords))
        return theirs(*arguments, **keywords)

    return call


def _counted(name: str, theirs: Callable[..., Any]) -> Callable[..., Any]:
    group_of = _group_of(name)

    def call(*arguments: Any, **keywords: Any) -> Any:
        count_fallback(f"{name}: mkernel has no scaled matmul", group_of(arguments, keywords))
        return theirs(*arguments, **keywords)

    return call


def _in_host_memory(name: str) -> "Callable[..., Any]":
    """PyTorch's own definition of an operator, which it gives to its fake tensors alone. It runs in host memory, too, and has the
    strides that compiled code was promised."""
    import torch.distributed._symmetric_memory as symmetric

    defined: "Optional[Callable[..., Any]]" = getattr(symmetric, f"_{name}_fallback", None)
    if defined is None:
        raise Unimplemented(f"patch_symm_mem: PyTorch {torch.__version__} has no {symmetric.__name__}._{name}_fallback")
    names = [argument.name for argument in getattr(torch.ops.symm_mem, name).default._schema.arguments]
    kind = KINDS[name]

    def call(*arguments: Any, **keywords: Any) -> Any:
        values = {**dict(zip(names, arguments)), **keywords}
        bs = values["Bs"] if "Bs" in values else [values["B"]]
        with contextlib.suppress(Refused):  # PyTorch has what mkernel does not, but checks no shape here
            check(kind, values["A"], bs, values[DIMENSIONS[kind]], c10d._get_group_size_by_name(values["group_name"]))
        return defined(*arguments, **keywords)

    return call
