"""The MoE operators in torch.ops.mkernel: schemas, the call on real tensors, shapes for torch.compile."""

from typing import Any, Callable, Optional

import torch

from mkernel.errors import Error, Unimplemented
from mkernel.torch import _autocast
from mkernel.torch._groups import Membership, membership_of, resolve
from mkernel.torch._moe_decide import MoeDecision, MoeLimits, MoeOperands, check, decide
from mkernel.torch._options import Options, copies, current, totals
from mkernel.torch._plans import Plan
from mkernel.torch._run import aligned, compare

GEMM, LAYER = "moe_dispatch_gemm", "moe_layer"
_ROUTING = "Tensor x, Tensor topk_ids, Tensor topk_weights"
_REST = "int num_experts, str group_name, *, int max_tokens=0, int capacity=0, bool weights_on_input=False"
_SHARED = "Tensor? shared_w1=None, Tensor? shared_w1_up=None, Tensor? shared_w2=None, Tensor? shared_weights=None"
SCHEMAS = {
    GEMM: f"({_ROUTING}, Tensor w, {_REST}) -> Tensor",
    LAYER: f"({_ROUTING}, Tensor w1, Tensor? w1_up, Tensor w2, {_REST}, {_SHARED}) -> Tensor",
}


# ---- the call


def run(name: str, operands: MoeOperands, limits: MoeLimits, group_name: str, y: Optional[torch.Tensor] = None,
        wait: bool = False) -> torch.Tensor:
    """The result, in `y` when it is given: dense [tokens, n] of x's type and device, on a GPU at a multiple of GPU_ALIGNMENT.
    `wait`: on a GPU, too, the launch is over, and raises here what every rank has refused it for."""
    totals[name] += 1
    membership, options = membership_of(group_name), current()
    with membership.lock:
        decision = (_compared if options.check else decide)(membership, operands, limits, options)
        if y is None:
            y = operands.x.new_empty(decision.tokens, operands.columns())
        if decision.key is not None:
            stream, captured = membership.stream() if operands.x.is_cuda else (0, False)
            plan = membership.plans.get(decision.key, captured)
            _launch(plan, decision, operands, y, options, stream)
            if (wait or options.check) and operands.x.is_cuda and not captured:
                torch.cuda.current_stream(membership.device).synchronize()
                plan.raise_failure()
    return y


def _compared(membership: Membership, operands: MoeOperands, limits: MoeLimits, options: Options) -> MoeDecision:
    """decide(), compared over all ranks: one that cannot go on keeps nobody waiting."""
    try:
        decision = decide(membership, operands, limits, options)
    except Error as error:
        compare(membership, "operation, or why there is none", [error.text])
        raise
    compare(membership, "operation, or why there is none", [str(decision.key)])
    return decision


def _launch(plan: Plan, decision: MoeDecision, operands: MoeOperands, y: torch.Tensor, options: Options, stream: int) -> None:
    for copy in decision.copies:
        copies[copy.partition(" (")[0]] += 1
    key, copied, factors = decision.key, decision.copied, operands.shared_weights
    assert key is not None

    def dense(name: str, tensor: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
        if tensor is None:
            return None
        if name in copied:
            column_major = key.w_layout == "column_major"
            tensor = tensor.transpose(-1, -2).contiguous().transpose(-1, -2) if column_major else tensor.contiguous()
        return aligned(tensor, name)

    pending = plan.start(
        options,
        stream,
        {
            "x": aligned(operands.x.contiguous(), "x"),
            "topk": _numbers(operands.topk_ids),
            "weights": operands.topk_weights.to(torch.float32).contiguous(),
            "w1": dense("w" if operands.w2 is None else "w1", operands.w1),
            "w1_up": dense("w1_up", operands.w1_up),
            "w2": dense("w2", operands.w2),
            "shared_w1": dense("shared_w1", operands.shared_w1),
            "shared_w1_up": dense("shared_w1_up", operands.shared_w1_up),
            "shared_w2": dense("shared_w2", operands.shared_w2),
            "shared_weights": None if factors is None else factors.to(torch.float32).contiguous(),
            "y": y,
        },
        tokens=decision.tokens,
    )
    totals["launches"] += 1
    if pending is not None:
        pending.wait()


def _numbers(ids: torch.Tensor) -> torch.Tensor:
    """Expert numbers as int32. One beyond its range must not become the number of another expert."""
    if ids.dtype == torch.int64:
        bounds = torch.iinfo(torch.int32)
        ids = ids.clamp(bounds.min, bounds.max).to(torch.int32)
    return ids.contiguous()


def moe_dispatch_gemm(x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor, w: torch.Tensor, num_experts: int,
                      group_name: str, *, max_tokens: int = 0, capacity: int = 0, weights_on_input: bool = False) -> torch.Tensor:
    operands = MoeOperands(x, topk_ids, topk_weights, w, None, None)
    return run(GEMM, operands, MoeLimits(num_experts, max_tokens, capacity, weights_on_input), group_name)


def moe_layer(x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor, w1: torch.Tensor, w1_up: Optional[torch.Tensor],
              w2: torch.Tensor, num_experts: int, group_name: str, *, max_tokens: int = 0, capacity: int = 0,
              weights_on_input: bool = False, **shared: Optional[torch.Tensor]) -> torch.Tensor:
    """`shared`: by the fields of MoeOperands."""
    operands = MoeOperands(x, topk_ids, topk_weights, w1, w1_up, w2, **shared)
    return run(LAYER, operands, MoeLimits(num_experts, max_tokens, capacity, weights_on_input), group_name)


# ---- shapes


def _fake(operands: MoeOperands, num_experts: int, group_name: str) -> torch.Tensor:
    group = resolve(group_name)
    check(operands, num_experts, group.size(), group.rank())
    return operands.x.new_empty(operands.x.shape[0], operands.columns())


def _fake_moe_dispatch_gemm(x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor, w: torch.Tensor, num_experts: int,
                            group_name: str, *, max_tokens: int = 0, capacity: int = 0, weights_on_input: bool = False) -> torch.Tensor:
    return _fake(MoeOperands(x, topk_ids, topk_weights, w, None, None), num_experts, group_name)


def _fake_moe_layer(x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor, w1: torch.Tensor,
                    w1_up: Optional[torch.Tensor], w2: torch.Tensor, num_experts: int, group_name: str, *, max_tokens: int = 0,
                    capacity: int = 0, weights_on_input: bool = False, **shared: Optional[torch.Tensor]) -> torch.Tensor:
    return _fake(MoeOperands(x, topk_ids, topk_weights, w1, w1_up, w2, **shared), num_experts, group_name)


# ---- gradients: there are none yet


def refuse_gradients(name: str) -> "Callable[..., Any]":
    """A kernel for autograd. What asks for a gradient would silently get none."""
    operator = getattr(torch.ops.mkernel, name).default
    fields = [argument.name for argument in operator._schema.arguments]

    def kernel(keyset: Any, *arguments: Any, **keywords: Any) -> Any:
        if torch.is_grad_enabled():
            for field, value in (*zip(fields, arguments), *keywords.items()):
                if isinstance(value, torch.Tensor) and value.requires_grad:
                    raise Unimplemented(
                        f"{name}: {field} requires a gradient, and there is no backward yet: call it under torch.no_grad(), or "
                        f"with {field}.detach()"
                    )
        with torch._C._AutoDispatchBelowAutograd():
            return operator.redispatch(keyset & torch._C._after_autograd_keyset, *arguments, **keywords)

    return kernel


_Library: Any = torch.library.Library  # which has no types
_library = _Library("mkernel", "FRAGMENT")
_CALLS: "dict[str, tuple[Callable[..., Any], Callable[..., Any]]]" = {
    GEMM: (moe_dispatch_gemm, _fake_moe_dispatch_gemm),
    LAYER: (moe_layer, _fake_moe_layer),
}
for _name, _schema in SCHEMAS.items():
    _real, _shape = _CALLS[_name]
    _library.define(_name + _schema, tags=[torch.Tag.needs_fixed_stride_order])
    for _key in ("CPU", "CUDA"):
        _library.impl(_name, _real, _key)
    torch.library.register_fake(f"mkernel::{_name}", _shape, lib=_library)
    _library.impl(_name, refuse_gradients(_name), "Autograd", with_keyset=True)
    _autocast.register(_library, _name, ("x", "w") if _name == GEMM else ("x", "w1", "w1_up", "w2", "shared_w1", "shared_w1_up", "shared_w2"))
