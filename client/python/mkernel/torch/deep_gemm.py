"""The MoE layer of DeepGEMM ("mega MoE") on mkernel: the functions of its bf16 form, called in the same way."""

import array
from typing import Any, Optional

import torch

from mkernel import _abi
from mkernel._arguments import integer
from mkernel._operands import GPU_ALIGNMENT
from mkernel.errors import FailedPrecondition, InvalidArgument, Unimplemented
from mkernel.operations import block_range
from mkernel.torch import _moe
from mkernel.torch._groups import Membership, membership_of, process_group_of
from mkernel.torch._moe_decide import MoeLimits, MoeOperands

_MOST = 2**31 - 1


class SymmBuffer:
    """Inputs of bf16_mega_moe(), for the caller to fill before each call: the first rows of x [num_max_tokens_per_rank, hidden],
    topk_idx (int64) and topk_weights (float32) [num_max_tokens_per_rank, num_topk]. Ordinary memory of this rank: what is symmetric
    belongs to the operation of the first call."""

    def __init__(self, group: Any, num_experts: int, num_max_tokens_per_rank: int, num_topk: int, hidden: int,
                 intermediate_hidden: int, capacity: int, num_shared_experts: int) -> None:
        group = process_group_of("group", group)
        membership = membership_of(str(group.group_name))
        device = torch.device("cpu") if membership.device < 0 else torch.device("cuda", membership.device)
        self.group: Any = group  #: None after destroy()
        self.num_experts, self.num_topk = num_experts, num_topk
        self.num_max_tokens_per_rank, self.capacity = num_max_tokens_per_rank, capacity
        self.hidden, self.intermediate_hidden = hidden, intermediate_hidden
        self.num_shared_experts = num_shared_experts
        self.x = torch.zeros(num_max_tokens_per_rank, hidden, dtype=torch.bfloat16, device=device)
        self.topk_idx = torch.zeros(num_max_tokens_per_rank, num_topk, dtype=torch.int64, device=device)
        self.topk_weights = torch.zeros(num_max_tokens_per_rank, num_topk, dtype=torch.float32, device=device)

    def destroy(self) -> None:
        """Gives the memory back; the operation stays until shutdown()."""
        self.group = None
        del self.x, self.topk_idx, self.topk_weights


def get_symm_buffer_for_mega_moe(group: Any, num_experts: int, num_max_tokens_per_rank: int, num_topk: int, hidden: int,
                                 intermediate_hidden: int, use_fp8_dispatch: Optional[bool] = None, mma_type: str = "bf16xbf16",
                                 activation: str = "swiglu", *, num_shared_experts: int = 0, capacity: int = 0) -> SymmBuffer:
    """Buffers for one layer, the same on every rank of `group`. `num_shared_experts`: through which every token goes, each with
    intermediate_hidden. `capacity`: as that of torch.ops.mkernel.moe_layer. Local: nobody is waited for. Errors: Unimplemented (what mkernel does not have), InvalidArgument, NotInitialized."""
    if use_fp8_dispatch or mma_type != "bf16xbf16":
        raise Unimplemented(f"use_fp8_dispatch = {use_fp8_dispatch}, mma_type = {mma_type!r}: mkernel has bf16xbf16 alone")
    _check_activation(activation)
    sizes = {"num_experts": num_experts, "num_max_tokens_per_rank": num_max_tokens_per_rank, "num_topk": num_topk, "hidden": hidden,
             "intermediate_hidden": intermediate_hidden}
    plain = {field: integer(field, value, 1, _MOST) for field, value in sizes.items()}
    more = {"num_shared_experts": num_shared_experts, "capacity": capacity}
    return SymmBuffer(group, **plain, **{field: integer(field, value, 0, _MOST) for field, value in more.items()})


def transform_weights_for_mega_moe(l1_weights: torch.Tensor, l2_weights: torch.Tensor,
                                   activation: str = "swiglu") -> "tuple[torch.Tensor, torch.Tensor]":
    """The weights as bf16_mega_moe() takes them, which is as they are: l1 [experts, 2 * intermediate, hidden], gates before ups,
    l2 [experts, hidden, intermediate]. Nothing is copied. Errors: Unimplemented (weights with scaling factors)."""
    _check_activation(activation)
    for field, weights in (("l1_weights", l1_weights), ("l2_weights", l2_weights)):
        if isinstance(weights, (tuple, list)):
            raise Unimplemented(f"{field} has scaling factors: mkernel has bf16 weights alone")
        if weights.dtype != torch.bfloat16:
            raise Unimplemented(f"{field} has dtype {weights.dtype}; mkernel has bf16 weights alone")
    return l1_weights, l2_weights


def bf16_mega_moe(y: torch.Tensor, l1_weights: torch.Tensor, l2_weights: torch.Tensor, sym_buffer: SymmBuffer,
                  cumulative_local_expert_recv_stats: Optional[torch.Tensor] = None, activation: str = "swiglu",
                  activation_clamp: Optional[float] = None, fast_math: bool = True, *,
                  shared_l1_weights: Optional[torch.Tensor] = None, shared_l2_weights: Optional[torch.Tensor] = None) -> None:
    """**Collective**. y [tokens, hidden] = the layer's output for the first `tokens` rows of `sym_buffer`; `tokens` may differ
    between ranks and calls. `fast_math` changes nothing: products are summed in fp32, and the activation is exact.

    `cumulative_local_expert_recv_stats`, int32 by expert of this rank, is raised by the rows that came to each. It waits for the GPU,
    takes round trips of all ranks, so give it on every rank or on none, and no graph can capture it.

    `shared_l1_weights` [2 * n, hidden] and `shared_l2_weights` [hidden, n] with n = num_shared_experts * intermediate_hidden of the
    buffer: of the shared experts, which every rank has. Errors: Unimplemented (what mkernel does not have, by its field), and
    those of torch.ops.mkernel.moe_layer."""
    _check_activation(activation)
    if activation_clamp is not None:
        raise Unimplemented(f"activation_clamp = {activation_clamp}: mkernel does not clamp activations")
    if sym_buffer.group is None:
        raise FailedPrecondition("bf16_mega_moe: destroy() was called for sym_buffer")
    group_name = str(sym_buffer.group.group_name)
    membership = membership_of(group_name)
    tokens = _check_y(y, sym_buffer)
    if l2_weights.shape[-1] != sym_buffer.intermediate_hidden:
        raise InvalidArgument(
            f"l2_weights of shape {tuple(l2_weights.shape)} has {l2_weights.shape[-1]} columns, and sym_buffer was made for "
            f"intermediate_hidden = {sym_buffer.intermediate_hidden}"
        )
    shared_columns = 0 if shared_l2_weights is None else shared_l2_weights.shape[-1]
    if shared_columns != sym_buffer.num_shared_experts * sym_buffer.intermediate_hidden:
        raise InvalidArgument(
            f"shared_l2_weights has {shared_columns} columns, and sym_buffer was made for num_shared_experts = "
            f"{sym_buffer.num_shared_experts} with intermediate_hidden = {sym_buffer.intermediate_hidden}"
        )
    stats = cumulative_local_expert_recv_stats
    mine = slice(*block_range(sym_buffer.num_experts, membership.world_size, membership.rank))
    if stats is not None and (stats.dtype != torch.int32 or stats.shape != (mine.stop - mine.start,)):
        raise InvalidArgument(
            f"cumulative_local_expert_recv_stats has shape {tuple(stats.shape)} and dtype {stats.dtype}, wanted are "
            f"({mine.stop - mine.start},) and torch.int32"
        )
    on_gpu = sym_buffer.x.is_cuda
    if stats is not None and on_gpu and torch.cuda.is_current_stream_capturing():
        raise Unimplemented("cumulative_local_expert_recv_stats: it takes round trips of all ranks, which no CUDA graph can capture")
    ids = sym_buffer.topk_idx[:tokens]
    shared_w1, shared_w2 = (None if w is None else w.transpose(-1, -2) for w in (shared_l1_weights, shared_l2_weights))
    operands = MoeOperands(sym_buffer.x[:tokens], ids, sym_buffer.topk_weights[:tokens], l1_weights.transpose(1, 2), None,
                           l2_weights.transpose(1, 2), shared_w1=shared_w1, shared_w2=shared_w2)
    limits = MoeLimits(sym_buffer.num_experts, sym_buffer.num_max_tokens_per_rank, sym_buffer.capacity)
    with torch.no_grad(), membership.lock:
        direct = y.is_contiguous() and not (on_gpu and y.data_ptr() % GPU_ALIGNMENT)
        result = _moe.run(_moe.LAYER, operands, limits, group_name, y if direct else None, stats is not None)
        if result is not y:
            y.copy_(result)
        if stats is not None:
            stats += _rows_of_all(membership, ids, sym_buffer.num_experts)[mine].to(stats.device)


def _check_activation(activation: str) -> None:
    if activation != "swiglu":
        raise Unimplemented(f"activation = {activation!r}; mkernel has swiglu alone")


def _check_y(y: torch.Tensor, sym_buffer: SymmBuffer) -> int:
    """The number of tokens."""
    x = sym_buffer.x
    if y.dim() != 2 or y.shape[1] != sym_buffer.hidden or y.shape[0] > sym_buffer.num_max_tokens_per_rank:
        raise InvalidArgument(
            f"y has shape {tuple(y.shape)}, wanted are at most {sym_buffer.num_max_tokens_per_rank} rows (num_max_tokens_per_rank) "
            f"of {sym_buffer.hidden}"
        )
    if y.dtype != x.dtype or y.device != x.device:
        raise InvalidArgument(f"y has dtype {y.dtype} on {y.device}, wanted are {x.dtype} on {x.device}")
    return y.shape[0]


def _rows_of_all(membership: Membership, ids: torch.Tensor, num_experts: int) -> torch.Tensor:
    """Rows of each expert, of the tokens of all ranks: through the group, whose waits have an end."""
    counts = array.array("i", torch.bincount(ids.flatten(), minlength=num_experts).tolist())
    most = _abi.MAX_EXCHANGE_BYTES // counts.itemsize
    sums = []
    for begin in range(0, num_experts, most):
        said = [array.array("i", part) for part in membership.group.exchange(counts[begin : begin + most].tobytes())]
        sums += [sum(rows) for rows in zip(*said)]
    return torch.tensor(sums, dtype=torch.int32)
