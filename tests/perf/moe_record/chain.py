"""PyTorch's mixture of experts of several ranks, unfused: all-to-all over NCCL, torch._grouped_mm, and all-to-all back."""
from typing import NamedTuple

import torch
import torch.distributed as dist

import layer
import measure


class Way(NamedTuple):
    """How the routed rows of one iteration have come to the ranks of their experts."""

    order: torch.Tensor      # sorts this rank's rows by expert, and so by rank
    gives: list              # rows to each rank
    takes: list              # rows from each rank
    by_expert: torch.Tensor  # sorts the rows that came by expert


class Chain(measure.Theirs):
    """The operation of a ShareCase: sorted rows go to the ranks of their experts, are multiplied, and come back to be weighted and
    summed. With `half`, only the first half is timed, up to the products; the rest is done when the result is verified."""

    roundings = layer.TORCH_ROUNDINGS

    def __init__(self, share, half=False):
        self.case, self.half = share, half
        self.name = "half_chain" if half else "chain"
        shape, device = share.shape, share.device
        self.experts_of = [len(owned) for owned in share.owned]  # by rank; it is sent their counts
        self.mine = len(share.all_weights.mine)
        self.last = torch.tensor([owned.stop - 1 for owned in share.owned], device=device)
        self.groups = torch.arange(self.mine, dtype=torch.int16, device=device).repeat(len(share.owned))
        # The allocator keeps as much as the fullest iteration needs, so that no timed span waits for memory from the driver.
        columns = 3 * max(shape.hidden, shape.n) + shape.wide + 2 * shape.intermediate
        torch.empty(share.capacity * columns, dtype=torch.bfloat16, device=device)

    def __call__(self):
        sent = self._sent()
        return sent if self.half else self._back(*sent)

    def finished(self, results):
        return self._back(*results) if self.half else results

    def _sent(self):
        """(how rows travelled, the products of those that came here, by expert)."""
        case, shape = self.case, self.case.shape
        numbers, order = case.topk.flatten().sort()
        ends = torch.searchsorted(numbers, case.numbers, right=True)
        counts = ends.diff(prepend=ends.new_zeros(1))
        came = counts.new_empty(len(self.experts_of) * self.mine)
        said = dist.all_to_all_single(came, counts, [self.mine] * len(self.experts_of), self.experts_of, async_op=True)
        rows = case.x[order // shape.topk]  # while the counts travel
        said.wait()
        by_rank = came.view(-1, self.mine)
        to = ends[self.last].diff(prepend=ends.new_zeros(1))
        gives, takes = torch.stack((to, by_rank.sum(1))).tolist()
        there = rows.new_empty(sum(takes), shape.hidden)
        travel = dist.all_to_all_single(there, rows, takes, gives, async_op=True)
        by_expert = self.groups.repeat_interleave(came, output_size=len(there)).sort(stable=True).indices
        ends = by_rank.sum(0).cumsum(0, dtype=torch.int32)
        travel.wait()
        way = Way(order, gives, takes, by_expert)
        if len(there) == 0:
            return way, there.new_empty(0, shape.n)
        return way, layer.products(there[by_expert], ends, case.w1, case.w2)

    def _back(self, way, rows):
        shape = self.case.shape
        sorted_back = torch.empty_like(rows)
        sorted_back[way.by_expert] = rows
        home = rows.new_empty(len(way.order), shape.n)
        dist.all_to_all_single(home, sorted_back, way.gives, way.takes)
        return layer.summed(home, way.order, self.case.weights)


def chains_of(share):
    """Dispatch+GEMM is compared with the whole, which computes the same, and with its first half."""
    return [Chain(share)] if share.shape.intermediate else [Chain(share), Chain(share, half=True)]
