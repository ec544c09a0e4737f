"""mkernel for PyTorch: fused operators on ordinary tensors, over process groups of torch.distributed.

    mkernel.torch.init()
    _, (c,) = torch.ops.mkernel.fused_all_gather_matmul(a, [weight.t()], 0, group.group_name, return_A=False)

The only part of the package that imports PyTorch; `import mkernel` does not import it."""

import mkernel.torch._attention  # noqa: F401: these four register operators
import mkernel.torch._attention_varlen  # noqa: F401
import mkernel.torch._moe  # noqa: F401
import mkernel.torch._ops  # noqa: F401
from mkernel.torch import nn, ring_flash_attn
from mkernel.torch._build import build
from mkernel.torch._decide import Refused
from mkernel.torch._explain import Explanation, explain
from mkernel.torch._grouped import grouped_mm
from mkernel.torch._groups import NotInitialized, init, shutdown, synchronize
from mkernel.torch._options import Options, counters, options, reset_counters, set_options
from mkernel.torch._patch import patch_symm_mem, unpatch_symm_mem
from mkernel.torch.context_parallel import patch_context_parallel, unpatch_context_parallel
from mkernel.torch.deep_gemm import bf16_mega_moe, get_symm_buffer_for_mega_moe, transform_weights_for_mega_moe
from mkernel.torch.liger import LigerExpertParallelFusedMoe
from mkernel.torch.megatron import patch_megatron, unpatch_megatron

__all__ = [
    "Explanation",
    "LigerExpertParallelFusedMoe",
    "NotInitialized",
    "Options",
    "Refused",
    "bf16_mega_moe",
    "build",
    "counters",
    "explain",
    "get_symm_buffer_for_mega_moe",
    "grouped_mm",
    "init",
    "nn",
    "options",
    "patch_context_parallel",
    "patch_megatron",
    "patch_symm_mem",
    "reset_counters",
    "ring_flash_attn",
    "set_options",
    "shutdown",
    "synchronize",
    "transform_weights_for_mega_moe",
    "unpatch_context_parallel",
    "unpatch_megatron",
    "unpatch_symm_mem",
]
