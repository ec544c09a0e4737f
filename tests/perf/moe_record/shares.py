"""Several ranks: what each of them routes and holds, and its floor, which is a rank alone that computes as many rows of the same
experts."""
import dataclasses
import struct

import torch

import layer
import rank_cases
from mkernel.operations import block_range

ROW_UNIT = 64  # rows of an expert are counted as whole ones of these
# Exponents of the popularity of experts. With the largest one the most popular expert has all tokens of which each has one.
EXPONENTS = {rank_cases.RANDOM: 0.0, rank_cases.ZIPF: 1.2, rank_cases.ONE_EXPERT: 1e3, rank_cases.IDLE_RANK: 0.0}


def shape_of(case):
    return layer.Shape(case.name, case.model, case.tokens, case.hidden, case.intermediate, case.n, case.experts, case.topk)


class ShareOfWeights:
    """w1 and w2 of experts `mine`; those of others are made again when they are asked for: every expert has a seed."""

    def __init__(self, shape, device, mine):
        self.shape, self.device, self.mine = shape, device, mine
        sizes = [(shape.wide, shape.hidden), (shape.n, shape.intermediate)][:2 if shape.intermediate else 1]
        made = [torch.empty(len(mine), *size, dtype=torch.bfloat16, device=device) for size in sizes]
        for which, all_of in enumerate(made):
            for expert, matrix in zip(mine, all_of):
                self._fill(matrix, expert, which)
        self.w1, self.w2 = made if shape.intermediate else (*made, None)

    def _fill(self, matrix, expert, which):
        """Activations keep their size."""
        generator = torch.Generator(self.device).manual_seed(2 * expert + which)
        return matrix.normal_(0, matrix.shape[1] ** -0.5, generator=generator)

    def of(self, expert):
        pair = []
        for which, all_of in enumerate((self.w1, self.w2)):
            if all_of is None or expert in self.mine:
                pair.append(None if all_of is None else all_of[expert - self.mine.start])
            else:
                pair.append(self._fill(torch.empty_like(all_of[0]), expert, which))
        return pair


class ShareCase(layer.Routed):
    """The tokens of one of several ranks, which draws until the rows of every rank fit its capacity. `shape`: that of `case`, or a
    smaller one."""

    def __init__(self, shape, case, device, meeting, common):
        self.meeting, self.idles = meeting, case.routing == rank_cases.IDLE_RANK
        self.owned = [range(*block_range(shape.experts, meeting.world, rank)) for rank in range(meeting.world)]
        self.all_weights = ShareOfWeights(shape, device, self.owned[meeting.rank])
        super().__init__(shape, EXPONENTS[case.routing], self.all_weights, device, common)
        self.memory = (self.x, self.topk, self.weights)
        self.capacity = case.even_shares * shape.rows + ROW_UNIT * max(map(len, self.owned))
        self.node_of = [rank * case.nodes // meeting.world for rank in range(meeting.world)]
        self.rows = self.crossing = None  # of this routing, by rank: rows of each of its experts; its tokens that cross to another node

    def route(self):
        while True:
            if self.idles:
                idle = torch.randint(self.meeting.world, (), generator=self.common).item()
                tokens = 0 if self.meeting.rank == idle else self.shape.tokens
                self.x, self.topk, self.weights = (whole[:tokens] for whole in self.memory)
            super().route()
            self._tell()
            if all(sum(-(-rows // ROW_UNIT) * ROW_UNIT for rows in mine) <= self.capacity for mine in self.rows):
                return

    def _tell(self):
        """The other ranks what this one has drawn."""
        experts = self.shape.experts
        sent = self.topk.flatten().long().bincount(minlength=experts).tolist()
        nodes = torch.tensor([self.node_of[rank] for rank, owned in enumerate(self.owned) for _ in owned], device=self.device)
        crossing = (nodes[self.topk.long()] != self.node_of[self.meeting.rank]).any(1).sum().item()
        told = [struct.unpack(f"{experts + 1}i", said) for said in self.meeting.exchange(struct.pack(f"{experts + 1}i", *sent, crossing))]
        totals = [sum(of_rank[expert] for of_rank in told) for expert in range(experts)]
        self.rows = [[totals[expert] for expert in owned] for owned in self.owned]
        self.crossing = [of_rank[experts] for of_rank in told]

    def matrices(self, expert):
        return self.all_weights.of(expert)

    def wire_bytes(self):
        """Of two nodes, those that the rank with the most sends or receives: a row for each token that crosses, with what is said of
        its experts, and a sum that comes back."""
        if len(set(self.node_of)) == 1:
            return 0
        shape, world = self.shape, self.meeting.world
        there, back = 16 + 16 * shape.topk + 2 * shape.hidden, 2 * shape.n
        peers = [self.crossing[(rank + world // 2) % world] for rank in range(world)]
        return max(max(own * there + peer * back, peer * there + own * back) for own, peer in zip(self.crossing, peers))


class FloorCase(layer.Routed):
    """A rank alone with the weights of a ShareCase, and as many rows of each expert as that routing gives the rank."""

    def __init__(self, share, topk):
        self.share, self.op = share, "moe_layer" if share.shape.intermediate else "moe_dispatch_gemm"
        shape = dataclasses.replace(share.shape, tokens=-(-share.capacity // topk), experts=len(share.all_weights.mine), topk=topk)
        super().__init__(shape, 0.0, share.all_weights, share.device)
        self.memory = (self.x, self.topk, self.weights)

    def route(self):
        counts, _ = fitted(self.share.rows[self.share.meeting.rank], self.shape.topk)
        experts = self.numbers.repeat_interleave(torch.tensor(counts, device=self.device))
        chosen = experts.view(self.shape.topk, -1).t()  # an expert's rows go to tokens that follow each other, so to different ones
        self.x, self.topk, self.weights = (whole[: len(chosen)] for whole in self.memory)
        self.topk.copy_(chosen[torch.randperm(len(chosen)).to(self.device)])

    def moved(self, rank):
        """How many rows of a rank's had to be another expert's."""
        return fitted(self.share.rows[rank], self.shape.topk)[1]


class GroupedFloor(layer.GroupedCase):
    """The product of a rank alone with the weights of a ShareCase, and with the rows that its routing gives the rank, sorted already."""

    op = "grouped_gemm"

    def __init__(self, share):
        self.share = share
        shape = dataclasses.replace(share.shape, tokens=share.capacity, experts=len(share.all_weights.mine), topk=1, grouped=True)
        super().__init__(shape, 0.0, share.all_weights, share.device)

    def renew(self):
        self.ends.copy_(torch.tensor(self.share.rows[self.share.meeting.rank]).cumsum(0))
        self.sorted_x.normal_()
        self._want(None)

    def _want(self, order):
        """Rows of no expert are not computed."""
        super()._want(order)
        rows = int(self.ends[-1])
        self.wanted, self.tolerance = self.wanted[:rows], self.tolerance[:rows]

    def moved(self, rank):
        return 0


def floor_of(share, case):
    return FloorCase(share, case.floor_topk) if case.floor_topk else GroupedFloor(share)


def fitted(counts, topk):
    """(rows of each expert of a rank whose tokens have `topk` experts each, how many of them had to be another expert's). Up to
    `topk` - 1 rows more than whole tokens need are left out."""
    tokens = max(1, sum(counts) // topk)
    fits = [min(count, tokens) for count in counts]
    lacking = tokens * topk - sum(fits)
    moved = max(0, lacking)
    for expert, count in enumerate(fits):
        fits[expert] += min(tokens - count, lacking) if lacking > 0 else -min(count, -lacking)
        lacking -= fits[expert] - count
    return fits, moved
