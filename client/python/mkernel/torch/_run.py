"""The calls on real tensors: rows of A, launches, results in the shapes of torch."""

import json
import math
from typing import Any, Optional, Sequence

import torch

from mkernel import _abi
from mkernel._operands import GPU_ALIGNMENT
from mkernel.errors import InvalidArgument
from mkernel.torch import _short
from mkernel.torch._decide import Decision, check_reduce_op, decide
from mkernel.torch._groups import Membership, membership_of, resolve
from mkernel.torch._options import Options, copies, current, totals
from mkernel.torch._plans import Plan

GATHER, SCATTER, REDUCE = "fused_all_gather_matmul", "fused_matmul_reduce_scatter", "fused_matmul_all_reduce"


def all_gather_matmul(a: torch.Tensor, bs: "Sequence[torch.Tensor]", gather_dim: int,
                      group_name: str, *, return_A: bool = True) -> "tuple[Optional[torch.Tensor], list[torch.Tensor]]":
    quick = _short.call(GATHER, group_name, a, bs[0], bs[1:], return_A) if gather_dim == 0 and bs else None
    if quick is not None:
        return quick
    totals[GATHER] += 1
    membership, options = membership_of(group_name), current()
    with membership.lock:
        decision = _decided("ag_gemm", membership, a, bs, gather_dim, options)
        front = to_front(a, gather_dim)
        lead = (membership.world_size * front.shape[0], *front.shape[1:-1])
        products, full = _multiply(decision, membership, front, bs, options, return_A)
        if gather_dim == 0:
            of_a = (*lead, a.shape[-1]) if return_A else None
            _remember(GATHER, group_name, decision, a, bs, membership, options, tuple((*lead, b.shape[1]) for b in bs), of_a)
    if full is None and return_A:  # nothing was launched
        full = gather(front, membership.world_size, group_name)

    def shaped(rows: torch.Tensor) -> torch.Tensor:
        return _from_front(rows.view(*lead, rows.shape[-1]), gather_dim)

    return shaped(full) if full is not None and return_A else None, [shaped(c) for c in products]


def matmul_reduce_scatter(a: torch.Tensor, b: torch.Tensor, reduce_op: str, scatter_dim: int, group_name: str) -> torch.Tensor:
    quick = _short.call(SCATTER, group_name, a, b) if scatter_dim == 0 and reduce_op == "sum" else None
    if quick is not None:
        return quick[1][0]
    totals[SCATTER] += 1
    check_reduce_op(reduce_op)
    membership, options = membership_of(group_name), current()
    with membership.lock:
        decision = _decided("gemm_rs", membership, a, [b], scatter_dim, options)
        front = to_front(a, scatter_dim)
        (c,), _ = _multiply(decision, membership, front, [b], options)
        shape = (front.shape[0] // membership.world_size, *front.shape[1:-1], b.shape[1])
        if scatter_dim == 0:
            _remember(SCATTER, group_name, decision, a, (b,), membership, options, (shape,))
    result = _from_front(c.view(shape), scatter_dim).contiguous()
    return result.div_(membership.world_size) if reduce_op == "avg" else result


def matmul_all_reduce(a: torch.Tensor, b: torch.Tensor, reduce_op: str, group_name: str) -> torch.Tensor:
    quick = _short.call(REDUCE, group_name, a, b) if reduce_op == "sum" else None
    if quick is not None:
        return quick[1][0]
    totals[REDUCE] += 1
    check_reduce_op(reduce_op)
    membership, options = membership_of(group_name), current()
    with membership.lock:
        decision = _decided("gemm_ar", membership, a, [b], 0, options)
        (c,), _ = _multiply(decision, membership, a, [b], options)
        shape = (*a.shape[:-1], b.shape[1])
        _remember(REDUCE, group_name, decision, a, (b,), membership, options, (shape,))
    return c.view(shape).div_(membership.world_size) if reduce_op == "avg" else c.view(shape)


def _remember(name: str, group_name: str, decision: Decision, a: torch.Tensor, bs: "Sequence[torch.Tensor]", membership: Membership,
              options: Options, shapes: "tuple[tuple[int, ...], ...]", gathered: "Optional[tuple[int, ...]]" = None) -> None:
    plain = decision.key is not None and not decision.copies and len(decision.fused) == len(bs)
    if (a.device.type == _short.DEVICE or _short.extension is not None) and plain and not options.check:
        _short.remember(name, group_name, a, bs, membership, decision, options, shapes, gathered)


def to_front(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """With dimension `dim` as the outermost: a view."""
    return tensor if dim == 0 else tensor.movedim(dim, 0)


def _from_front(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    return tensor if dim == 0 else tensor.movedim(0, dim)


def gather(front: torch.Tensor, world: int, group_name: str) -> torch.Tensor:
    """The blocks of all ranks along dimension 0, through the process group."""
    return _through(torch.ops._c10d_functional.all_gather_into_tensor, front, group_name, world)


def scatter(front: torch.Tensor, reduce_op: str, world: int, group_name: str) -> torch.Tensor:
    """This rank's block of the sum (or "avg") along dimension 0, through the process group."""
    return _through(torch.ops._c10d_functional.reduce_scatter_tensor, front, group_name, reduce_op, world)


def pass_on(tensor: torch.Tensor, rows: int, world: int, rank: int, group_name: str) -> torch.Tensor:
    """Gives `tensor` to the next rank, and returns what the rank before gives, which has `rows` along dimension 0: through the
    process group."""
    row_bytes = math.prod(tensor.shape[1:]) * tensor.element_size()
    sent, received = [0] * world, [0] * world
    sent[(rank + 1) % world], received[(rank - 1) % world] = tensor.shape[0] * row_bytes, rows * row_bytes
    raw = tensor.contiguous().flatten().view(torch.uint8)  # whatever the types are that the backend can pass on
    passed = _through(torch.ops._c10d_functional.all_to_all_single, raw, group_name, received, sent)
    return passed.view(tensor.dtype).view(rows, *tensor.shape[1:])


def _through(collective: Any, front: torch.Tensor, group_name: str, *arguments: Any) -> torch.Tensor:
    device = torch.device("cpu") if front.is_cuda and not _takes_cuda(group_name) else front.device
    result: torch.Tensor = torch.ops._c10d_functional.wait_tensor(collective(front.to(device).contiguous(), *arguments, group_name))
    return result.to(front.device)


def _takes_cuda(group_name: str) -> bool:
    """Whether the process group's backend takes tensors of a GPU. gloo takes some, and ends the process (PyTorch 2.11)."""
    try:
        return str(resolve(group_name)._get_backend(torch.device("cuda")).name()) != "gloo"
    except RuntimeError:  # it has none for them
        return False


def _decided(kind: str, membership: Membership, a: torch.Tensor, bs: "Sequence[torch.Tensor]", dim: int,
             options: Options) -> Decision:
    if options.check:
        _compare(kind, membership, a, bs, dim, options)
    try:
        return decide(kind, membership, a, bs, dim, options)
    except InvalidArgument as error:  # what mkernel does not have (Refused) is made in another way, on every rank
        membership.group.reject_launch(error)
        raise


def _compare(kind: str, membership: Membership, a: torch.Tensor, bs: "Sequence[torch.Tensor]", dim: int,
             options: Options) -> None:
    call = [kind, dim, list(a.shape), str(a.dtype), [list(b.shape) for b in bs][:8], options.buckets, options.sm_margin]
    compare(membership, "operation, dimension, shape and type of A, shapes of B, buckets, sm_margin", call)


def compare(membership: Membership, what: str, call: "list[Any]") -> None:
    """Over all ranks; every rank raises the same. `what`: names of the fields of `call`."""
    said = membership.group.exchange(json.dumps(call).encode()[: _abi.MAX_EXCHANGE_BYTES].ljust(_abi.MAX_EXCHANGE_BYTES))
    for rank, other in enumerate(said):
        if other != said[0]:
            raise InvalidArgument(
                f"the ranks make different calls ({what}): rank 0 {said[0].decode().strip()}, rank {rank} {other.decode().strip()}"
            )


def _multiply(decision: Decision, membership: Membership, front: torch.Tensor, bs: "Sequence[torch.Tensor]", options: Options,
              gathered: bool = False) -> "tuple[list[torch.Tensor], Optional[torch.Tensor]]":
    """The product of each B, dense: rows of all ranks (ag_gemm), of this rank (gemm_rs), of A (gemm_ar). With them the rows of all
    ranks if they are to be `gathered` and something was launched."""
    blocks = membership.world_size if decision.kind == "ag_gemm" else 1
    key = decision.key
    if key is None:
        return [front.new_empty(blocks * decision.rows, b.shape[1]) for b in bs], None
    for copy in decision.copies:
        copies[copy.partition(" (")[0]] += 1
    totals["padded"] += decision.padded
    stream, captured = membership.stream() if front.is_cuda else (0, False)
    plan = membership.plans.get(key, captured)
    if options.buckets and membership.world_size > 1 and decision.rows not in plan.agreed_rows:
        compare(membership, "rows of A and operation", [decision.rows, str(key)])
        plan.agreed_rows.add(decision.rows)

    def result(field: str, columns: int) -> torch.Tensor:
        if decision.padded and blocks > 1:
            return plan.staging(field, front, blocks * decision.bucket, columns)
        return front.new_empty(blocks * decision.bucket, columns)

    def unpadded(rows: torch.Tensor) -> torch.Tensor:
        """The rows of each rank, without those of the bucket. One block is a view, several become dense by a copy."""
        if not decision.padded:
            return rows
        columns = rows.shape[1]
        return rows.view(blocks, decision.bucket, columns)[:, : decision.rows].reshape(blocks * decision.rows, columns)

    try:
        a = _rows(decision, plan, front)
        b, *more_b = (aligned(bs[index].contiguous() if decision.copy_b else bs[index], "B") for index in decision.fused)
        full = result("gathered", key.k) if gathered or len(bs) > len(decision.fused) else None
        c, *more_c = (result(f"c{index}", n) for index, n in enumerate((key.n, *key.more_n)))
        operands = {"a": a, "b": b, "c": c, "gathered": full, "more_b": more_b, "more_c": more_c}
        pending = plan.start(options, stream, operands)
        totals["launches"] += 1
        if pending is not None:
            pending.wait()
    except BaseException:
        plan.forget_staging()
        raise
    products = dict(zip(decision.fused, map(unpadded, (c, *more_c))))
    full = None if full is None else unpadded(full)
    for index, b in enumerate(bs):
        if index not in products:
            products[index] = torch.mm(full, b)
    return [products[index] for index in range(len(bs))], full


def _rows(decision: Decision, plan: Plan, front: torch.Tensor) -> torch.Tensor:
    """A as the operation takes it: dense, and with the rows of the bucket."""
    if not decision.padded:
        return aligned(front.contiguous() if decision.copy_a else front, "A")
    a = plan.staging("a", front, decision.blocks * decision.bucket, front.shape[-1])
    padded = a.view(decision.blocks, decision.bucket, front.shape[-1])
    padded[:, : decision.rows].copy_(front.reshape(decision.blocks, decision.rows, front.shape[-1]))
    # Ranks that disagree about the number of rows find NaN, and not numbers that look right.
    padded[:, decision.rows :].fill_(float("nan"))
    return a


def aligned(tensor: torch.Tensor, name: str) -> torch.Tensor:
    if tensor.device.type == "cpu" or tensor.data_ptr() % GPU_ALIGNMENT == 0:
        return tensor
    copies[f"{name}: it does not begin at a multiple of {GPU_ALIGNMENT} bytes"] += 1
    return tensor.clone(memory_format=torch.preserve_format)
