"""The MoE layer of Liger-Kernel on mkernel: the same class, called in the same way. Forward alone."""

from typing import Any, Optional

import torch

from mkernel._arguments import integer
from mkernel.torch._groups import process_group_of

MOST = 2**31 - 1


class LigerExpertParallelFusedMoe(torch.nn.Module):
    """A layer of experts that are spread over the ranks of `process_group` (None: all processes). It holds no parameters.

    `max_tokens`, `capacity`: as those of torch.ops.mkernel.moe_layer, which runs it. With max_tokens = 0 every rank has the same
    number of tokens. mkernel.torch.init() must have been called for the process group."""

    def __init__(self, process_group: Optional[Any] = None, *, max_tokens: int = 0, capacity: int = 0) -> None:
        super().__init__()
        group = process_group_of("process_group", process_group)
        self.process_group, self.group_name = group, str(group.group_name)
        self.max_tokens, self.capacity = integer("max_tokens", max_tokens, 0, MOST), integer("capacity", capacity, 0, MOST)

    def forward(self, hidden_states: torch.Tensor, expert_indices: torch.Tensor, expert_weights: torch.Tensor, all_B: torch.Tensor,
                all_C: torch.Tensor, all_A: torch.Tensor, num_experts: int) -> torch.Tensor:
        """Of the shape of hidden_states [..., H]; expert_indices, expert_weights [..., top_k]. Of this rank's experts all_B
        [experts, I, H] is the gate, all_C [experts, I, H] the up and all_A [experts, H, I] the down projection. Errors: those of
        the operator; Unimplemented when something requires a gradient."""
        y: torch.Tensor = torch.ops.mkernel.moe_layer(
            hidden_states.reshape(-1, hidden_states.shape[-1]),
            expert_indices.reshape(-1, expert_indices.shape[-1]),
            expert_weights.reshape(-1, expert_weights.shape[-1]),
            all_B.transpose(1, 2),
            all_C.transpose(1, 2),
            all_A.transpose(1, 2),
            num_experts,
            self.group_name,
            max_tokens=self.max_tokens,
            capacity=self.capacity,
        )
        return y.reshape(hidden_states.shape)

    def extra_repr(self) -> str:
        return f"group={self.group_name!r}, max_tokens={self.max_tokens}, capacity={self.capacity}"
