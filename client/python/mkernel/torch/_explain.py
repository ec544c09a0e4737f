"""explain(): what a call would do, without doing it."""

import dataclasses
from typing import Any, Callable, Optional

import torch

from mkernel.errors import Error, InvalidArgument
from mkernel.torch import _attention, _attention_varlen, _autocast, _grouped, _moe, _moe_decide, _ops, _patch
from mkernel.torch._attention_decide import ALONE, BACKWARD, AttentionDecision, Call, Operands
from mkernel.torch._attention_decide import decide as decide_attention
from mkernel.torch._decide import KINDS, Decision, Refused, check_reduce_op, decide
from mkernel.torch._groups import Membership, NotInitialized, alone_on, membership_of, resolve
from mkernel.torch._options import current
from mkernel.torch._plans import PlanKey
from mkernel.torch._varlen_packing import check_varlen, packed_sizes

_ATTENTION = {**_attention.SCHEMAS, **_attention.BACKWARD_SCHEMAS}
_SCHEMAS = {**_ops.SCHEMAS, **_moe.SCHEMAS, **_ATTENTION, **_attention_varlen.SCHEMAS, **_grouped.SCHEMAS}
# Of these PyTorch has its own, which runs what mkernel does not have.
_FALL_BACK = {*_ATTENTION, *_attention_varlen.SCHEMAS, *_grouped.SCHEMAS}


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What a call of an operator does. str() of it is a text for people."""

    op: str
    path: str  #: "mkernel", "fallback" (PyTorch's own), or "error" (the call raises)
    why: str
    operation: Optional[str] = None  #: launched by the call
    planned: bool = False  #: it exists: the call makes no collective round trip to make it
    expected: Optional[float] = None  #: seconds of a launch on a GPU once it is planned, all ranks on time
    rows: Optional[int] = None  #: of each rank's block of A (of all of A for an all-reduce); this rank's tokens
    bucket: Optional[int] = None  #: what these rows are padded to; the number of tokens that a MoE operation has room for
    copies: "tuple[str, ...]" = ()  #: of operands and results
    backward: Optional[str] = None  #: of attention: what its backward pass is, and what it leaves to PyTorch

    def __str__(self) -> str:
        lines = [f"{self.op}: {self.path}: {self.why}"]
        if self.operation is not None:
            lines.append(f"  operation {self.operation}")
        if self.expected is not None:
            lines.append(f"  expected  {self.expected * 1e3:.3f} ms a launch")
        if self.rows is not None:
            lines.append(f"  rows {self.rows}, bucket {self.bucket}, {'planned' if self.planned else 'not planned yet'}")
        if self.backward is not None:
            lines.append(f"  backward  {self.backward}")
        lines += [f"  copy {copy}" for copy in self.copies] or ["  no copies"]
        return "\n".join(lines)


def explain(op: Any, *arguments: Any, **keywords: Any) -> Explanation:
    """What `op` does with these arguments: an operator of torch.ops.mkernel or torch.ops.symm_mem, or its name. Local: nothing is
    launched, and no other rank is asked. Errors: InvalidArgument (an operator that neither has)."""
    namespace, name = _name_of(op)
    if namespace == "symm_mem" and name in _patch.SCALED:
        return Explanation(name, "fallback", f"mkernel has no scaled matmul: PyTorch's own {name} runs")
    if name not in (KINDS if namespace == "symm_mem" else _SCHEMAS) or namespace not in ("mkernel", "symm_mem"):
        raise InvalidArgument(f"op = {namespace}::{name}; known are {', '.join(_SCHEMAS)}")
    if namespace == "symm_mem" and not _patch.is_patched():
        return Explanation(name, "fallback", "PyTorch's own operator runs, because patch_symm_mem() was not called")
    values = _bind(name, arguments, keywords)
    if namespace == "mkernel":
        values = _autocast.applied(name, values)
    explained = next((explain for schemas, explain in _EXPLAINED if name in schemas), _explain_gemm)
    try:
        return explained(name, values)
    except (Refused, NotInitialized) as error:
        falls_back = namespace == "symm_mem" or name in _FALL_BACK
        return Explanation(name, "fallback" if falls_back else "error", str(error))
    except Error as error:
        return Explanation(name, "error", str(error))


def _name_of(op: Any) -> "tuple[str, str]":
    text = op if isinstance(op, str) else getattr(op, "_qualified_op_name", None) or getattr(getattr(op, "_schema", None), "name", None)
    if text is None:
        raise TypeError(f"op = {op!r} is neither an operator of torch.ops nor the name of one")
    namespace, _, name = text.replace("torch.ops.", "").replace("::", ".").rpartition(".")
    return namespace or "mkernel", name


def _bind(name: str, arguments: "tuple[Any, ...]", keywords: "dict[str, Any]") -> "dict[str, Any]":
    schema = torch._C.parse_schema(f"mkernel::{name}{_SCHEMAS[name]}")
    fields = [argument.name for argument in schema.arguments]
    values = {argument.name: argument.default_value for argument in schema.arguments if argument.has_default_value()}
    values.update(zip(fields, arguments))
    values.update(keywords)
    missing = [field for field in fields if field not in values]
    unknown = [field for field in values if field not in fields]
    if missing or unknown or len(arguments) > len(fields):
        raise InvalidArgument(f"{name} takes ({', '.join(fields)}); missing are {missing}, unknown are {unknown}")
    return values


def _explain_gemm(name: str, values: "dict[str, Any]") -> Explanation:
    if "reduce_op" in values:
        check_reduce_op(values["reduce_op"])
    membership = membership_of(values["group_name"])
    bs = values["Bs"] if "Bs" in values else [values["B"]]
    dim = values.get("gather_dim", values.get("scatter_dim", 0))
    decision = decide(KINDS[name], membership, values["A"], bs, dim, current())
    planned, expected = _plan_of(membership, decision.key)
    return Explanation(name, "mkernel", _why(decision, values), decision.key and str(decision.key), planned, expected, decision.rows,
                       decision.bucket, decision.copies)


def _explain_moe(name: str, values: "dict[str, Any]") -> Explanation:
    membership = membership_of(values["group_name"])
    fields = ("x", "topk_ids", "topk_weights", "w" if name == _moe.GEMM else "w1", "w1_up", "w2", "shared_w1",
              "shared_w1_up", "shared_w2", "shared_weights")
    given: "list[Any]" = [values.get(field) for field in fields]
    operands = _moe_decide.MoeOperands(*given)
    limits = _moe_decide.MoeLimits(values["num_experts"], values["max_tokens"], values["capacity"], values["weights_on_input"])
    decision = _moe_decide.decide(membership, operands, limits, current())
    if decision.key is None:
        return Explanation(name, "mkernel", "no rank has a token: nothing is launched", rows=0, bucket=0)
    planned, expected = _plan_of(membership, decision.key)
    return Explanation(name, "mkernel", "fused by mkernel", str(decision.key), planned, expected, decision.tokens,
                       decision.key.max_tokens, decision.copies)


def _explain_attention(name: str, values: "dict[str, Any]") -> Explanation:
    operands: Operands = {field: values[field] for field in ("q", "k", "v")}
    membership = membership_of(values["group_name"]) if "group_name" in values else alone_on(values["q"].device)
    call = Call(**{field: values[field] for field in Call._fields if field in values})
    if name in _attention.SCHEMAS:
        given = operands
        backward: Optional[str] = _backward_of(lambda: decide_attention(BACKWARD[name], membership, given, call, current()))
    else:
        operands, backward = _attention.backward_operands(values["d_out"], values["d_lse"], operands, values["out"], values["lse"]), None
    decision = decide_attention(name, membership, operands, call, current())
    if decision.key is None:
        return Explanation(name, "mkernel", "the result has no elements, or there are no keys: nothing is launched")
    planned, expected = _plan_of(membership, decision.key)
    return Explanation(name, "mkernel", "run by mkernel", str(decision.key), planned, expected, copies=decision.copies, backward=backward)


def _backward_of(decide: "Callable[[], AttentionDecision]") -> str:
    try:
        decision = decide()
    except Refused as error:
        return f"in PyTorch: {error.text}"
    return f"{decision.key or 'nothing is launched'}; in PyTorch where the loss depends on lse"


def _explain_varlen(name: str, values: "dict[str, Any]") -> Explanation:
    q, k, cu_seqlens = values["q"], values["k"], values["cu_seqlens"]
    call = Call(values["causal"], values["scale"], 0, values["zigzag"])
    check_varlen(q, k, values["v"], cu_seqlens, call)
    group = resolve(values["group_name"])
    sizes = packed_sizes(cu_seqlens.shape[0] - 1, q.shape[0], call, group.size(), group.rank())
    if 0 in (q.numel(), *sizes):
        return Explanation(name, "mkernel", "the result has no elements, or there are no sequences: nothing is launched")
    composed = alone_on(q.device)

    def decide(kind: str) -> AttentionDecision:
        return _attention_varlen.decide(kind, composed, {"q": q, "k": k}, sizes, call, current())

    why, backward = "run by mkernel", _backward_of(lambda: decide(BACKWARD[ALONE]))
    try:
        membership = membership_of(values["group_name"])
        decision = _attention_varlen.decide_ring(membership, q, k, values["v"], cu_seqlens.shape[0] - 1, call, current())
    except (Refused, NotInitialized) as error:
        membership, decision = composed, decide(ALONE)
        why = f"{error.text}. The process group gathers keys and values, then mkernel attends to them; nothing overlaps"
    planned, expected = _plan_of(membership, decision.key)
    return Explanation(name, "mkernel", why, str(decision.key), planned, expected, copies=decision.copies, backward=backward)


def _explain_grouped(name: str, values: "dict[str, Any]") -> Explanation:
    a, b, *others = (values[field] for field in ("self", "mat2", "offs", "bias", "out_dtype"))
    membership, decision = _grouped.decide(a, b, *others, current())
    if decision.key is None:
        return Explanation(name, "mkernel", "the product has no elements: nothing is launched", rows=decision.rows)
    planned, expected = _plan_of(membership, decision.key)
    return Explanation(name, "mkernel", "run by mkernel", str(decision.key), planned, expected, decision.rows, decision.key.max_rows,
                       decision.copies)


_EXPLAINED: "tuple[tuple[dict[str, str], Callable[[str, dict[str, Any]], Explanation]], ...]" = (
    (_moe.SCHEMAS, _explain_moe),
    (_ATTENTION, _explain_attention),
    (_attention_varlen.SCHEMAS, _explain_varlen),
    (_grouped.SCHEMAS, _explain_grouped),
)


def _plan_of(membership: Membership, key: Optional[PlanKey]) -> "tuple[bool, Optional[float]]":
    """(whether it exists, seconds of a launch)."""
    if key is None or key not in membership.plans:
        return False, None
    return True, membership.plans[key].operation.expected_seconds()


def _why(decision: Decision, values: "dict[str, Any]") -> str:
    if decision.key is None:
        return "the product has no elements: nothing is launched"
    parts = ["fused by mkernel"]
    if len(values.get("Bs", ())) > 1:
        fused = ", ".join(f"Bs[{index}]" for index in sorted(decision.fused))
        others = len(values["Bs"]) > len(decision.fused)
        parts.append(f"one launch multiplies {fused}" + ("; torch multiplies the others with the gathered A" if others else ""))
    if values.get("return_A"):
        parts.append("return_A copies what was gathered")
    if current().sm_margin and decision.key.executor == "cpu":
        parts.append("sm_margin has no meaning on the cpu executor")
    return "; ".join(parts)
