"""The MoE layer of Liger-Kernel on mkernel: the same class, called in the same way. Forward alone."""

from typing import Any, Optional

import torch
import torch.distributed as dist


class LigerExpertParallelFusedMoe(torch.nn.Module):
    """A layer of experts that are spread over the ranks of `process_group` (None: all processes). It holds no parameters.

    `max_tokens`, `capacity`: as those of torch.ops.mkernel.moe_layer, which runs it. With max_tokens = 0 every rank has the same
    number of tokens. mkernel.torch.init() must have been called for the process group."""

    def __init__(self, process_group: Optional[Any] = None, *, max_tokens: int = 0, capacity: int = 0) -> None:
        super().__init__()
        group: Any = dist.group.WORLD if process_group is None else process_group
        self.process_group, self.group_name = group, str(group.group_name)
        self.max_tokens, self.capacity = max_tokens, capacity

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
