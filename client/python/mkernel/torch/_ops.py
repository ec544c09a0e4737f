"""The operators in torch.ops.mkernel: schemas, what runs where, shapes for torch.compile, and gradients."""

from typing import Any, Callable, Optional, Sequence

import torch
import torch.distributed.distributed_c10d as c10d

from mkernel._calls import check as raise_status
from mkernel.torch import _autocast, _extension, _run, _short
from mkernel.torch._decide import check, check_reduce_op

# The first two schemas are, but for the namespace, those of torch.ops.symm_mem.
SCHEMAS = {
    "fused_all_gather_matmul":
        "(Tensor A, Tensor[] Bs, int gather_dim, str group_name, *, bool return_A = True) -> (Tensor?, Tensor[])",
    "fused_matmul_reduce_scatter": "(Tensor A, Tensor B, str reduce_op, int scatter_dim, str group_name) -> Tensor",
    "fused_matmul_all_reduce": "(Tensor A, Tensor B, str reduce_op, str group_name) -> Tensor",
}
REAL = {_run.GATHER: _run.all_gather_matmul, _run.SCATTER: _run.matmul_reduce_scatter, _run.REDUCE: _run.matmul_all_reduce}


# ---- shapes


def _fake_all_gather_matmul(A: torch.Tensor, Bs: "Sequence[torch.Tensor]", gather_dim: int, group_name: str, *,
                            return_A: bool = True) -> "tuple[Optional[torch.Tensor], list[torch.Tensor]]":
    world = _world(group_name)
    check("ag_gemm", A, Bs, gather_dim, world)
    front = A.movedim(gather_dim, 0)
    shape = (world * front.shape[0], *front.shape[1:-1])
    results = [A.new_empty(*shape, b.shape[1]).movedim(0, gather_dim) for b in Bs]
    return A.new_empty(*shape, A.shape[-1]).movedim(0, gather_dim) if return_A else None, results


def _fake_matmul_reduce_scatter(A: torch.Tensor, B: torch.Tensor, reduce_op: str, scatter_dim: int,
                                group_name: str) -> torch.Tensor:
    world = _world(group_name)
    check_reduce_op(reduce_op)
    check("gemm_rs", A, [B], scatter_dim, world)
    shape = [*A.shape[:-1], B.shape[1]]
    shape[scatter_dim] = shape[scatter_dim] // world
    return A.new_empty(shape)


def _fake_matmul_all_reduce(A: torch.Tensor, B: torch.Tensor, reduce_op: str, group_name: str) -> torch.Tensor:
    check_reduce_op(reduce_op)
    check("gemm_ar", A, [B], 0, 1)
    return A.new_empty(*A.shape[:-1], B.shape[1])


def _world(group_name: str) -> int:
    return int(c10d._get_group_size_by_name(group_name))  # type: ignore[arg-type]


# ---- gradients


def _flat(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """Rows, with dimension `dim` as the outermost."""
    return tensor.movedim(dim, 0).flatten(0, -2)


def _gradient_of_b(a: torch.Tensor, gradient: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a^T gradient, both as rows, with the strides of b: those of a weight's gradient when b is weight.t()."""
    return a.t() @ gradient if b.is_contiguous() else (gradient.t() @ a).t()


def _setup_all_gather_matmul(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
    A, Bs, ctx.gather_dim, ctx.group_name = inputs
    # The gathered A is not kept: it is world_size times as large, and is gathered again.
    ctx.save_for_backward(A, *Bs)
    ctx.set_materialize_grads(False)


def _backward_all_gather_matmul(ctx: Any, grad_A: Optional[torch.Tensor], grad_Cs: "Sequence[Optional[torch.Tensor]]") -> Any:
    A, *Bs = ctx.saved_tensors
    dim, name, world = ctx.gather_dim, ctx.group_name, _world(ctx.group_name)
    needs_a, needs_bs = ctx.needs_input_grad[:2]
    of_a: Optional[torch.Tensor] = None
    of_bs: "list[Optional[torch.Tensor]]" = [None] * len(Bs)
    if needs_a:
        for b, gradient in zip(Bs, grad_Cs):
            if gradient is not None:
                part = torch.ops.mkernel.fused_matmul_reduce_scatter(gradient, b.t(), "sum", dim, name)
                of_a = part if of_a is None else of_a + part
        if grad_A is not None:
            part = _run.scatter(grad_A.movedim(dim, 0), "sum", world, name).movedim(0, dim)
            of_a = part if of_a is None else of_a + part
    if any(need and gradient is not None for need, gradient in zip(needs_bs, grad_Cs)):
        full = _run.gather(A.movedim(dim, 0), world, name).flatten(0, -2)
        for index, (b, gradient) in enumerate(zip(Bs, grad_Cs)):
            if needs_bs[index] and gradient is not None:
                of_bs[index] = _gradient_of_b(full, _flat(gradient, dim), b)
    return of_a, of_bs, None, None


def _setup_matmul_reduce_scatter(ctx: Any, inputs: Any, output: Any) -> None:
    A, B, ctx.reduce_op, ctx.scatter_dim, ctx.group_name = inputs
    ctx.save_for_backward(A, B)


def _backward_matmul_reduce_scatter(ctx: Any, gradient: torch.Tensor) -> Any:
    A, B = ctx.saved_tensors
    needs_a, needs_b = ctx.needs_input_grad[:2]
    dim = ctx.scatter_dim
    if ctx.reduce_op == "avg":
        gradient = gradient / _world(ctx.group_name)
    of_a = of_b = full = None
    if needs_a:
        full, (of_a,) = torch.ops.mkernel.fused_all_gather_matmul(gradient, [B.t()], dim, ctx.group_name, return_A=needs_b)
    elif needs_b:
        full = _run.gather(gradient.movedim(dim, 0), _world(ctx.group_name), ctx.group_name).movedim(0, dim)
    if full is not None and needs_b:
        of_b = _gradient_of_b(_flat(A, dim), _flat(full, dim), B)
    return of_a, of_b, None, None, None


def _setup_matmul_all_reduce(ctx: Any, inputs: Any, output: Any) -> None:
    A, B, ctx.reduce_op, ctx.group_name = inputs
    ctx.save_for_backward(A, B)


def _backward_matmul_all_reduce(ctx: Any, gradient: torch.Tensor) -> Any:
    """The result is one replicated tensor, whose gradient every rank has: nothing is communicated."""
    A, B = ctx.saved_tensors
    needs_a, needs_b = ctx.needs_input_grad[:2]
    if ctx.reduce_op == "avg":
        gradient = gradient / _world(ctx.group_name)
    of_a = gradient @ B.t() if needs_a else None
    of_b = _gradient_of_b(_flat(A, 0), _flat(gradient, 0), B) if needs_b else None
    return of_a, of_b, None, None


_dispatch_modes: Any = torch._C._len_torch_dispatch_stack
_is_functional: Any = torch._is_functional_tensor
_is_grad_enabled = torch.is_grad_enabled
_Tensor, _Parameter = torch.Tensor, torch.nn.Parameter


def _are_plain(a: torch.Tensor, b: torch.Tensor, more: "Sequence[torch.Tensor]" = ()) -> bool:
    """Real memory, nothing that traces, and no gradient asked for."""
    for tensor in (a, b, *more) if more else (a, b):
        if type(tensor) is not _Tensor and type(tensor) is not _Parameter or _is_functional(tensor):
            return False
        if tensor.requires_grad and _is_grad_enabled():
            return False
    return _dispatch_modes() == 0


# PyTorch's kernels for autograd (`theirs`), which cost as much as the rest of a call, run only where something needs them.


def _all_gather_matmul_kernel(theirs: "Callable[..., Any]") -> "Callable[..., Any]":
    def kernel(keyset: Any, A: torch.Tensor, Bs: "list[torch.Tensor]", gather_dim: int, group_name: str, *, return_A: bool = True) -> Any:
        if gather_dim == 0 and Bs:
            b, *more = Bs
            found = _short.call(_run.GATHER, group_name, A, b, more, return_A) if _are_plain(A, b, more) else None
            if found is not None:
                return found
        return theirs(keyset, A, Bs, gather_dim, group_name, return_A=return_A)

    return kernel


def _matmul_reduce_scatter_kernel(theirs: "Callable[..., Any]") -> "Callable[..., Any]":
    def kernel(keyset: Any, A: torch.Tensor, B: torch.Tensor, reduce_op: str, scatter_dim: int, group_name: str) -> Any:
        if scatter_dim == 0 and reduce_op == "sum" and _are_plain(A, B):
            found = _short.call(_run.SCATTER, group_name, A, B)
            if found is not None:
                return found[1][0]
        return theirs(keyset, A, B, reduce_op, scatter_dim, group_name)

    return kernel


def _matmul_all_reduce_kernel(theirs: "Callable[..., Any]") -> "Callable[..., Any]":
    def kernel(keyset: Any, A: torch.Tensor, B: torch.Tensor, reduce_op: str, group_name: str) -> Any:
        if reduce_op == "sum" and _are_plain(A, B):
            found = _short.call(_run.REDUCE, group_name, A, B)
            if found is not None:
                return found[1][0]
        return theirs(keyset, A, B, reduce_op, group_name)

    return kernel


_SHORT: "dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]]" = {
    _run.GATHER: _all_gather_matmul_kernel,
    _run.SCATTER: _matmul_reduce_scatter_kernel,
    _run.REDUCE: _matmul_all_reduce_kernel,
}


def _register_autograd(name: str, called: str, backward: "Callable[..., Any]", setup: "Callable[..., Any]") -> None:
    """Of the operator `name`, whose calls reach `called`."""
    try:
        from torch._library.autograd import Info, make_autograd_impl

        theirs = make_autograd_impl(getattr(torch.ops.mkernel, name).default, Info(backward, setup))
    except (ImportError, TypeError):  # another PyTorch has them elsewhere
        torch.library.register_autograd(f"mkernel::{name}", backward, setup_context=setup, lib=_library)
    else:
        _library.impl(called, _SHORT[name](theirs), "Autograd", with_keyset=True)


def _with_extension() -> bool:
    """Makes the extension's kernels those of the operators, where there is one. A call that it does not take goes on at another
    operator of the same schema, which has the kernels in Python."""
    extension = _extension.extension
    if extension is None:
        return False
    for name, schema in SCHEMAS.items():
        _library.define(_in_python(name) + schema, tags=[torch.Tag.needs_fixed_stride_order])
    for schema, kernel in (("_raise_status(int status) -> ()", raise_status),
                           ("_wait_for_launch(int operation, int pending, Tensor[] operands) -> ()", _extension.wait_for_launch)):
        _library.define(schema)
        _library.impl(schema.partition("(")[0], kernel, "CompositeExplicitAutograd")
    if extension.add_kernels():
        return True
    _extension.extension = _short.extension = None
    return False


def _in_python(name: str) -> str:
    return f"_{name}_in_python"


_Library: Any = torch.library.Library  # which has no types
_library = _Library("mkernel", "DEF")
# Shapes, and gradients: backward, and what it needs of forward.
_GRADIENTS: "dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]]" = {
    "fused_all_gather_matmul": (_fake_all_gather_matmul, _backward_all_gather_matmul, _setup_all_gather_matmul),
    "fused_matmul_reduce_scatter": (_fake_matmul_reduce_scatter, _backward_matmul_reduce_scatter, _setup_matmul_reduce_scatter),
    "fused_matmul_all_reduce": (_fake_matmul_all_reduce, _backward_matmul_all_reduce, _setup_matmul_all_reduce),
}
for _name, _schema in SCHEMAS.items():
    _library.define(_name + _schema, tags=[torch.Tag.needs_fixed_stride_order])
_is_extended = _with_extension()
for _name in SCHEMAS:
    _called = _in_python(_name) if _is_extended else _name
    for _key in ("CPU", "CUDA"):
        _library.impl(_called, REAL[_name], _key)
    _fake, _backward, _setup = _GRADIENTS[_name]
    torch.library.register_fake(f"mkernel::{_name}", _fake, lib=_library)
    _register_autograd(_name, _called, _backward, _setup)
    _autocast.register(_library, _name, ("A", "Bs") if _name == _run.GATHER else ("A", "B"))
