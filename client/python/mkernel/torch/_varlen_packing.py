"""Sequences of different lengths that ranks hold together: which rows attend to which, and where the others lie."""

from typing import NamedTuple

import torch

from mkernel.errors import InvalidArgument
from mkernel.torch._attention_decide import Call, check, parts_of


def check_varlen(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens: torch.Tensor, call: Call) -> None:
    """Raises what is wrong with shapes, types and devices; also for fake tensors."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() != 3:
            raise InvalidArgument(f"{name} has {tensor.dim()} dimensions, needed are 3: [positions, heads, head_dim]")
    check(q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), call)
    if q.shape[0] != k.shape[0]:
        raise InvalidArgument(f"q has {q.shape[0]} positions and k {k.shape[0]}: a rank holds the same positions of both")
    if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 1 or cu_seqlens.dtype != torch.int32:
        raise InvalidArgument(
            f"cu_seqlens has shape {tuple(cu_seqlens.shape)} and dtype {cu_seqlens.dtype}, needed are (sequences + 1,) and torch.int32"
        )
    if cu_seqlens.device != q.device:
        raise InvalidArgument(f"cu_seqlens is on {cu_seqlens.device} and q on {q.device}: they must be on the same device")


def check_lengths(cu_seqlens: torch.Tensor, rows: int, parts: int) -> None:
    """The values of a tensor in host memory. `parts` of a sequence are on a rank, and have the same size."""
    before = 0
    for index, end in enumerate(cu_seqlens.tolist()):
        most = rows if index else 0
        if not before <= end <= most:
            raise InvalidArgument(f"cu_seqlens[{index}] = {end}, but it must be {before}..{most}")
        if (end - before) % parts:
            raise InvalidArgument(f"cu_seqlens[{index}] = {end} ends a sequence of {end - before} positions: two parts of the same size "
                                  "need an even number")
        before = end


def within(cu_seqlens: torch.Tensor, rows: int) -> torch.Tensor:
    """With entries beyond `rows` that every launch refuses: an operation for more rows would take others."""
    return cu_seqlens.masked_fill(cu_seqlens > rows, torch.iinfo(torch.int32).max)


class Sizes(NamedTuple):
    """A part of a sequence with the keys that it sees is one of the packed sequences of a rank."""

    sequences: int
    keys: int  # rows of all of them together, at most


def packed_sizes(sequences: int, rows: int, call: Call, world: int, rank: int) -> Sizes:
    """Of `sequences` of which a rank holds `rows`."""
    seen = _parts_seen(call, world, rank)
    return Sizes(sequences * len(seen), rows // len(seen) * sum(seen))


def _parts_seen(call: Call, world: int, rank: int) -> "list[int]":
    """From the first part of a sequence on, by each part of `rank`."""
    parts, mine = parts_of(call, world, rank)
    return [part + 1 if call.causal else parts for part in mine]


class Packing:
    """The packed sequences of a rank, in the order of its rows, as tensors on the device of `cu_seqlens`: the host does not wait for
    their values. Of bad ones on a GPU no row is out of bounds, and the launch that reads them is refused."""

    def __init__(self, cu_seqlens: torch.Tensor, rows: int, call: Call, world: int, rank: int) -> None:
        seen = _parts_seen(call, world, rank)
        self.sizes = packed_sizes(cu_seqlens.shape[0] - 1, rows, call, world, rank)
        self._world, self._rows, self._held = world, rows, len(seen)
        self._begins, self._ends = cu_seqlens[:-1].long(), cu_seqlens[1:].long()
        self._part = (self._ends - self._begins) // self._held  # rows of a part
        starts = torch.stack([self._begins + index * self._part for index in range(self._held)], 1).flatten()
        self.cu_seqlens_q = within(torch.cat((starts.int(), cu_seqlens[-1:])), rows)
        self._keys = torch.stack([self._part * parts for parts in seen], 1).flatten()  # of each packed sequence
        self._cu_k = torch.cat((self._keys.new_zeros(1), self._keys.cumsum(0)))
        self.cu_seqlens_k = self._cu_k.int()

    def gathered_rows(self) -> torch.Tensor:
        """[keys]: where each packed key lies among the rows that all ranks hold, one rank's behind the other's."""
        key = torch.arange(self.sizes.keys, device=self._cu_k.device)
        at = torch.searchsorted(self._cu_k[1:], key, right=True).clamp(max=self.sizes.sequences - 1)
        sequence, position = at // self._held, key - self._cu_k[at]
        size = self._part[sequence].clamp(min=1)
        part = position // size
        second = part >= self._world  # zigzag: the second part of a rank, and the ranks in reverse order
        owner = torch.where(second, 2 * self._world - 1 - part, part)
        row = owner * self._rows + self._begins[sequence] + second * size + position % size
        return torch.where(key < self._cu_k[-1], row, 0).clamp(0, self._world * self._rows - 1)

    def packed_keys(self) -> torch.Tensor:
        """[parts of a rank, rows of all ranks]: which packed key of each part holds a row, `sizes.keys` where the part does not see it."""
        row = torch.arange(self._rows, device=self._cu_k.device)
        rank = torch.arange(self._world, device=row.device).unsqueeze(1)
        sequence = torch.searchsorted(self._ends, row, right=True).clamp(max=self._ends.shape[0] - 1)
        size, offset = self._part[sequence].clamp(min=1), row - self._begins[sequence]
        part = torch.where(offset < size, rank, 2 * self._world - 1 - rank)  # [world, rows]
        position = part * size + offset % size

        def of(index: int) -> torch.Tensor:
            at = sequence * self._held + index
            sees = (row < self._ends[-1]) & (position < self._keys[at])
            return torch.where(sees, self._cu_k[at] + position, self.sizes.keys).clamp(0, self.sizes.keys).flatten()

        return torch.stack([of(index) for index in range(self._held)])

    def ranges(self) -> "list[tuple[slice, slice]]":
        """Of queries and keys of the packed sequences that have some. The host waits for their values."""
        of_q, of_k = self.cu_seqlens_q.tolist(), self.cu_seqlens_k.tolist()
        return [(slice(a, b), slice(c, d)) for a, b, c, d in zip(of_q, of_q[1:], of_k, of_k[1:]) if a < b]
