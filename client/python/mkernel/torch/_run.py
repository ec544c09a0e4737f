"""The calls on real tensors: rows of A, launches, results in the shapes of torch."""

import json
from typing import Optional, Sequence

import torch

from mkernel._operands import GPU_ALIGNMENT
from mkernel.errors import InvalidArgument
from mkernel.operations import Pending
from mkernel.torch._decide import Decision, check_reduce_op, decide
from mkernel.torch._groups import Membership, membership_of
from mkernel.torch._options import Options, copies, current, totals
from mkernel.torch._plans import Plan


def all_gather_matmul(a: torch.Tensor, bs: "Sequence[torch.Tensor]", gather_dim: int,
                      group_name: str, *, return_A: bool = True) -> "tuple[Optional[torch.Tensor], list[torch.Tensor]]":
    totals["fused_all_gather_matmul"] += 1
    membership, options = membership_of(group_name), current()
    with membership.lock:
        decision = _decided("ag_gemm", membership, a, bs, gather_dim, options)
        front = to_front(a, gather_dim)
        products = _multiply(decision, membership, front, bs, options)
    world, lead = membership.world_size, front.shape[:-1]
    results = [_from_front(c.view(world * lead[0], *lead[1:], c.shape[1]), gather_dim) for c in products]
    gathered = _from_front(gather(front, world, group_name), gather_dim) if return_A else None
    return gathered, results


def matmul_reduce_scatter(a: torch.Tensor, b: torch.Tensor, reduce_op: str, scatter_dim: int, group_name: str) -> torch.Tensor:
    totals["fused_matmul_reduce_scatter"] += 1
    check_reduce_op(reduce_op)
    membership, options = membership_of(group_name), current()
    with membership.lock:
        decision = _decided("gemm_rs", membership, a, [b], scatter_dim, options)
        front = to_front(a, scatter_dim)
        (c,) = _multiply(decision, membership, front, [b], options)
    shape = (front.shape[0] // membership.world_size, *front.shape[1:-1], b.shape[1])
    result = _from_front(c.view(shape), scatter_dim).contiguous()
    return result.div_(membership.world_size) if reduce_op == "avg" else result


def matmul_all_reduce(a: torch.Tensor, b: torch.Tensor, reduce_op: str, group_name: str) -> torch.Tensor:
    totals["fused_matmul_all_reduce"] += 1
    check_reduce_op(reduce_op)
    membership, options = membership_of(group_name), current()
    with membership.lock:
        decision = _decided("gemm_ar", membership, a, [b], 0, options)
        (c,) = _multiply(decision, membership, a, [b], options)
    result = c.view(*a.shape[:-1], b.shape[1])
    return result.div_(membership.world_size) if reduce_op == "avg" else result


def to_front(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """With dimension `dim` as the outermost: a view."""
    return tensor if dim == 0 else tensor.movedim(dim, 0)


def _from_front(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    return tensor if dim == 0 else tensor.movedim(0, dim)


def gather(front: torch.Tensor, world: int, group_name: str) -> torch.Tensor:
    """The blocks of all ranks along dimension 0, through the process group."""
    full = torch.ops._c10d_functional.all_gather_into_tensor(front.contiguous(), world, group_name)
    waited: torch.Tensor = torch.ops._c10d_functional.wait_tensor(full)
    return waited


def _decided(kind: str, membership: Membership, a: torch.Tensor, bs: "Sequence[torch.Tensor]", dim: int,
             options: Options) -> Decision:
    if options.check:
        _compare(kind, membership, a, bs, dim, options)
    return decide(kind, membership, a, bs, dim, options)


def _compare(kind: str, membership: Membership, a: torch.Tensor, bs: "Sequence[torch.Tensor]", dim: int,
             options: Options) -> None:
    """Over all ranks; every rank raises the same."""
    call = [kind, dim, list(a.shape), str(a.dtype), [list(b.shape) for b in bs][:8], options.buckets, options.sm_margin]
    said = membership.group.exchange(json.dumps(call).encode()[:448].ljust(448))
    for rank, other in enumerate(said):
        if other != said[0]:
            raise InvalidArgument(
                f"the ranks make different calls (operation, dimension, shape and type of A, shapes of B, buckets, sm_margin): "
                f"rank 0 {said[0].decode().strip()}, rank {rank} {other.decode().strip()}"
            )


def _multiply(decision: Decision, membership: Membership, front: torch.Tensor, bs: "Sequence[torch.Tensor]",
              options: Options) -> "list[torch.Tensor]":
    """The product of each B, dense: rows of all ranks (ag_gemm), of this rank (gemm_rs), of A (gemm_ar)."""
    world = membership.world_size
    blocks = world if decision.kind == "ag_gemm" else 1
    if decision.empty:
        return [front.new_empty(0, b.shape[1]) for b in bs]
    for copy in decision.copies:
        copies[copy.partition(" (")[0]] += 1
    totals["padded"] += decision.padded
    keys = [key for key in decision.keys if key.n]
    if not keys:
        return [front.new_empty(blocks * decision.rows, 0) for _ in bs]
    stream, captured = membership.stream() if front.is_cuda else (0, False)
    plans = membership.plans.get(keys, captured)
    pending: "list[Optional[Pending]]" = []
    results = []
    try:
        a = _rows(decision, plans[0], front)
        for index, (key, b) in enumerate(zip(decision.keys, bs)):
            if key.n == 0:
                results.append(front.new_empty(blocks * decision.bucket, 0))
                continue
            plan = plans[len(pending)]
            b = _aligned(b.contiguous() if decision.copy_b[index] else b, "B")
            if decision.padded and blocks > 1:
                c = plan.staging(f"c{index}", front, blocks * decision.bucket, key.n)
            else:
                c = front.new_empty(blocks * decision.bucket, key.n)
            pending.append(plan.start(a, b, c, options, stream))
            totals["launches"] += 1
            results.append(c)
        for launch in pending:
            if launch is not None:
                launch.wait()
    except BaseException:
        for plan in plans:
            plan.forget_staging()
        raise
    if not decision.padded:
        return results
    # The rows of each rank, without those of the bucket. One block is a view, several become dense by a copy.
    return [c.view(blocks, decision.bucket, c.shape[1])[:, : decision.rows].reshape(blocks * decision.rows, c.shape[1])
            for c in results]


def _rows(decision: Decision, plan: Plan, front: torch.Tensor) -> torch.Tensor:
    """A as the operation takes it: dense, and with the rows of the bucket."""
    if not decision.padded:
        return _aligned(front.contiguous() if decision.copy_a else front, "A")
    a = plan.staging("a", front, decision.blocks * decision.bucket, front.shape[-1])
    padded = a.view(decision.blocks, decision.bucket, front.shape[-1])
    padded[:, : decision.rows].copy_(front.reshape(decision.blocks, decision.rows, front.shape[-1]))
    # Ranks that disagree about the number of rows find NaN, and not numbers that look right.
    padded[:, decision.rows :].fill_(float("nan"))
    return a


def _aligned(tensor: torch.Tensor, name: str) -> torch.Tensor:
    if tensor.device.type == "cpu" or tensor.data_ptr() % GPU_ALIGNMENT == 0:
        return tensor
    copies[f"{name}: it does not begin at a multiple of {GPU_ALIGNMENT} bytes"] += 1
    return tensor.clone(memory_format=torch.preserve_format)
