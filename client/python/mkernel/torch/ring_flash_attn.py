"""The functions of ring-flash-attention on mkernel, called in the same way:

    from mkernel.torch.ring_flash_attn import zigzag_ring_flash_attn_func

q [batch, positions, heads, head_dim], k and v [batch, positions, kv_heads, head_dim] are this rank's part of a sequence that the ranks
of `group` (None: all processes) hold together, every rank the same number of positions; kv [batch, positions, 2, ...] and qkv
[batch, positions, 3, ...] hold several of them. With causal=True rank r of w holds part r of w of the sequence, and for the zigzag
functions parts r and 2 * w - 1 - r of 2 * w, in this order. With causal=False the order does not matter.

out has the shape of q. With return_attn_probs=True the result is (out, lse, None) with lse [batch, heads, positions] in float32.
softmax_scale: None = 1 / sqrt(head_dim). `deterministic` changes nothing. dropout_p, window_size and alibi_slopes must have their
defaults.

The varlen functions take several sequences of different lengths, of each of which every rank holds its part: q [positions, heads,
head_dim], k and v [positions, kv_heads, head_dim], kv and qkv with a dimension of 2 or 3 behind the first, and lse is [heads,
positions]. cu_seqlens [sequences + 1], int32, says where this rank's parts of the sequences begin and end, on the device of q; it is
the same on every rank, and max_seqlen is not needed. The lengths are even for causal zigzag functions (checked in host memory alone).
They run torch.ops.mkernel.ring_attention_varlen: one launch on every rank, but for causal=True without zigzag, where keys and values are
gathered over the process group first. So they are in the backward pass, which is PyTorch code where the loss depends on lse: that waits
for the device to read cu_seqlens.

The others run torch.ops.mkernel.ring_attention, which has the gradients and says what falls back to PyTorch. That is so for causal=True
without zigzag: mkernel splits causal sequences zigzag alone, for equal work. Errors: Unimplemented (an argument that has not its default),
InvalidArgument (shapes; an odd number of positions for a causal zigzag function), and those of the operator."""

from typing import Any, Optional

import torch
import torch.distributed as dist

from mkernel._arguments import items
from mkernel.errors import InvalidArgument, Unimplemented

_OFF = (-1, -1)  # a window without bounds


def ring_flash_attn_func(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float = 0.0, softmax_scale: Optional[float] = None,
                         causal: bool = False, window_size: "tuple[int, int]" = _OFF, alibi_slopes: Optional[torch.Tensor] = None,
                         deterministic: bool = False, return_attn_probs: bool = False, group: Optional[Any] = None) -> Any:
    """Causal: contiguous parts."""
    return _attend((q, k, v), dropout_p, softmax_scale, causal, window_size, alibi_slopes, return_attn_probs, group, zigzag=False)


def ring_flash_attn_kvpacked_func(q: torch.Tensor, kv: torch.Tensor, dropout_p: float = 0.0, softmax_scale: Optional[float] = None,
                                  causal: bool = False, window_size: "tuple[int, int]" = _OFF,
                                  alibi_slopes: Optional[torch.Tensor] = None, deterministic: bool = False,
                                  return_attn_probs: bool = False, group: Optional[Any] = None) -> Any:
    """Causal: contiguous parts."""
    return _attend((q, *_unpacked("kv", kv, 2)), dropout_p, softmax_scale, causal, window_size, alibi_slopes, return_attn_probs, group,
                   zigzag=False)


def ring_flash_attn_qkvpacked_func(qkv: torch.Tensor, dropout_p: float = 0.0, softmax_scale: Optional[float] = None,
                                   causal: bool = False, window_size: "tuple[int, int]" = _OFF,
                                   alibi_slopes: Optional[torch.Tensor] = None, deterministic: bool = False,
                                   return_attn_probs: bool = False, group: Optional[Any] = None) -> Any:
    """Causal: contiguous parts."""
    return _attend(_unpacked("qkv", qkv, 3), dropout_p, softmax_scale, causal, window_size, alibi_slopes, return_attn_probs, group,
                   zigzag=False)


def zigzag_ring_flash_attn_func(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float = 0.0,
                                softmax_scale: Optional[float] = None, causal: bool = False, window_size: "tuple[int, int]" = _OFF,
                                alibi_slopes: Optional[torch.Tensor] = None, deterministic: bool = False,
                                return_attn_probs: bool = False, group: Optional[Any] = None) -> Any:
    """Causal: two parts on each rank."""
    return _attend((q, k, v), dropout_p, softmax_scale, causal, window_size, alibi_slopes, return_attn_probs, group, zigzag=True)


def zigzag_ring_flash_attn_kvpacked_func(q: torch.Tensor, kv: torch.Tensor, dropout_p: float = 0.0,
                                         softmax_scale: Optional[float] = None, causal: bool = False,
                                         window_size: "tuple[int, int]" = _OFF, alibi_slopes: Optional[torch.Tensor] = None,
                                         deterministic: bool = False, return_attn_probs: bool = False,
                                         group: Optional[Any] = None) -> Any:
    """Causal: two parts on each rank."""
    return _attend((q, *_unpacked("kv", kv, 2)), dropout_p, softmax_scale, causal, window_size, alibi_slopes, return_attn_probs, group,
                   zigzag=True)


def zigzag_ring_flash_attn_qkvpacked_func(qkv: torch.Tensor, dropout_p: float = 0.0, softmax_scale: Optional[float] = None,
                                          causal: bool = False, window_size: "tuple[int, int]" = _OFF,
                                          alibi_slopes: Optional[torch.Tensor] = None, deterministic: bool = False,
                                          return_attn_probs: bool = False, group: Optional[Any] = None) -> Any:
    """Causal: two parts on each rank."""
    return _attend(_unpacked("qkv", qkv, 3), dropout_p, softmax_scale, causal, window_size, alibi_slopes, return_attn_probs, group,
                   zigzag=True)


def ring_flash_attn_varlen_func(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens: torch.Tensor, max_seqlen: int,
                                dropout_p: float = 0.0, softmax_scale: Optional[float] = None, causal: bool = False,
                                window_size: "tuple[int, int]" = _OFF, alibi_slopes: Optional[torch.Tensor] = None,
                                deterministic: bool = False, return_attn_probs: bool = False, group: Optional[Any] = None) -> Any:
    """Causal: contiguous parts of each sequence."""
    return _attend((q, k, v), dropout_p, softmax_scale, causal, window_size, alibi_slopes, return_attn_probs, group, False, cu_seqlens)


def ring_flash_attn_varlen_kvpacked_func(q: torch.Tensor, kv: torch.Tensor, cu_seqlens: torch.Tensor, max_seqlen: int,
                                         dropout_p: float = 0.0, softmax_scale: Optional[float] = None, causal: bool = False,
                                         window_size: "tuple[int, int]" = _OFF, alibi_slopes: Optional[torch.Tensor] = None,
                                         deterministic: bool = False, return_attn_probs: bool = False,
                                         group: Optional[Any] = None) -> Any:
    """Causal: contiguous parts of each sequence."""
    return _attend((q, *_unpacked("kv", kv, 2, 1)), dropout_p, softmax_scale, causal, window_size, alibi_slopes, return_attn_probs, group,
                   False, cu_seqlens)


def ring_flash_attn_varlen_qkvpacked_func(qkv: torch.Tensor, cu_seqlens: torch.Tensor, max_seqlen: int, dropout_p: float = 0.0,
                                          softmax_scale: Optional[float] = None, causal: bool = False,
                                          window_size: "tuple[int, int]" = _OFF, alibi_slopes: Optional[torch.Tensor] = None,
                                          deterministic: bool = False, return_attn_probs: bool = False,
                                          group: Optional[Any] = None) -> Any:
    """Causal: contiguous parts of each sequence."""
    return _attend(_unpacked("qkv", qkv, 3, 1), dropout_p, softmax_scale, causal, window_size, alibi_slopes, return_attn_probs, group,
                   False, cu_seqlens)


def zigzag_ring_flash_attn_varlen_func(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens: torch.Tensor, max_seqlen: int,
                                       dropout_p: float = 0.0, softmax_scale: Optional[float] = None, causal: bool = False,
                                       window_size: "tuple[int, int]" = _OFF, alibi_slopes: Optional[torch.Tensor] = None,
                                       deterministic: bool = False, return_attn_probs: bool = False,
                                       group: Optional[Any] = None) -> Any:
    """Causal: two parts of each sequence on each rank."""
    return _attend((q, k, v), dropout_p, softmax_scale, causal, window_size, alibi_slopes, return_attn_probs, group, True, cu_seqlens)


def zigzag_ring_flash_attn_varlen_kvpacked_func(q: torch.Tensor, kv: torch.Tensor, cu_seqlens: torch.Tensor, max_seqlen: int,
                                                dropout_p: float = 0.0, softmax_scale: Optional[float] = None, causal: bool = False,
                                                window_size: "tuple[int, int]" = _OFF, alibi_slopes: Optional[torch.Tensor] = None,
                                                deterministic: bool = False, return_attn_probs: bool = False,
                                                group: Optional[Any] = None) -> Any:
    """Causal: two parts of each sequence on each rank."""
    return _attend((q, *_unpacked("kv", kv, 2, 1)), dropout_p, softmax_scale, causal, window_size, alibi_slopes, return_attn_probs, group,
                   True, cu_seqlens)


def zigzag_ring_flash_attn_varlen_qkvpacked_func(qkv: torch.Tensor, cu_seqlens: torch.Tensor, max_seqlen: int, dropout_p: float = 0.0,
                                                 softmax_scale: Optional[float] = None, causal: bool = False,
                                                 window_size: "tuple[int, int]" = _OFF, alibi_slopes: Optional[torch.Tensor] = None,
                                                 deterministic: bool = False, return_attn_probs: bool = False,
                                                 group: Optional[Any] = None) -> Any:
    """Causal: two parts of each sequence on each rank."""
    return _attend(_unpacked("qkv", qkv, 3, 1), dropout_p, softmax_scale, causal, window_size, alibi_slopes, return_attn_probs, group,
                   True, cu_seqlens)


def _unpacked(name: str, packed: torch.Tensor, count: int, dim: int = 2) -> "tuple[torch.Tensor, ...]":
    if packed.dim() != dim + 3 or packed.shape[dim] != count:
        wanted = f"{'batch, ' if dim == 2 else ''}positions, {count}, heads, head_dim"
        raise InvalidArgument(f"{name} has shape {tuple(packed.shape)}, needed is [{wanted}]")
    return packed.unbind(dim)


def _attend(operands: "tuple[torch.Tensor, ...]", dropout_p: float, scale: Optional[float], causal: bool,
            window_size: "tuple[int, int]", alibi_slopes: Optional[torch.Tensor], return_attn_probs: bool, group: Any, zigzag: bool,
            cu_seqlens: Optional[torch.Tensor] = None) -> Any:
    """`operands`: q, k and v."""
    if dropout_p != 0.0:
        raise Unimplemented(f"dropout_p = {dropout_p}: mkernel has no dropout, so it must be 0")
    if window_size != _OFF and items("window_size", window_size) != _OFF:
        raise Unimplemented(f"window_size = {window_size}: ring attention has no sliding window, so it must be {_OFF}")
    if alibi_slopes is not None:
        raise Unimplemented("alibi_slopes is given: mkernel has no biases, so it must be None")
    chosen: Any = dist.group.WORLD if group is None else group
    name = str(chosen.group_name)
    if cu_seqlens is not None:
        out, lse = torch.ops.mkernel.ring_attention_varlen(*operands, cu_seqlens, causal, scale, name, zigzag=zigzag)
    else:
        q = operands[0]
        if causal and zigzag and q.dim() > 1 and q.shape[1] % 2:
            raise InvalidArgument(
                f"q of shape {tuple(q.shape)} has {q.shape[1]} positions: two parts of the same size need an even number"
            )
        out, lse = torch.ops.mkernel.ring_attention(*operands, causal, scale, name, zigzag=zigzag)
    return (out, lse, None) if return_attn_probs else out
