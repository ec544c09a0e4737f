"""The operands of one rank of ring attention, and our operations on them. Keys and values of every rank have seeds, so each rank makes
those of the others as well, for verification."""
import torch

import cases
from measure import DEADLINE, Launched
from mkernel.operations import block_range


def held(shape, world, rank):
    """(begin, end) of the parts of the sequence that a rank holds, in its order."""
    if not shape.causal:
        return [block_range(shape.sequence, world, rank)]
    return [block_range(shape.sequence, 2 * world, part) for part in (rank, 2 * world - 1 - rank)]


class RingCase:
    """Operands of one rank, [batch, positions, heads, head_dim] as ring_attention() takes them; `all_k` and `all_v` of the sequence."""

    def __init__(self, shape, world, rank, device):
        self.shape, self.world, self.rank = shape, world, rank
        self.held = [held(shape, world, source) for source in range(world)]
        own = sum(end - begin for begin, end in self.held[rank])
        of_q, of_k, of_all = ((shape.batch, length, heads, shape.head_dim)
                              for length, heads in ((own, shape.heads), (own, shape.kv_heads), (shape.sequence, shape.kv_heads)))
        self.q, self.k, self.v, self.out, self.all_k, self.all_v = (
            torch.empty(size, dtype=torch.bfloat16, device=device) for size in (of_q, of_k, of_k, of_q, of_all, of_all))
        self.lse = torch.empty(shape.batch, shape.heads, own, dtype=torch.float32, device=device)
        self.positions = torch.cat([torch.arange(*part, device=device) for part in self.held[rank]])
        self.generator = torch.Generator(device)
        self.number = 0
        self.renew()

    def renew(self):
        """New inputs, spread normally, on all ranks the next ones."""
        self.number += 1
        self.q.normal_()
        for source in range(self.world):
            for which, (mine, whole) in enumerate(((self.k, self.all_k), (self.v, self.all_v))):
                self.generator.manual_seed((self.number * self.world + source) * 2 + which)
                for begin, end in self.held[source]:
                    whole[:, begin:end].normal_(generator=self.generator)
                if source == self.rank:
                    torch.cat([whole[:, begin:end] for begin, end in self.held[source]], 1, out=mine)
        self.looked = torch.randint(len(self.positions), (cases.LOOKED,), device=self.q.device)
        self.wanted = None

    def poison(self):
        self.out.fill_(float("nan"))

    def wrong(self, out):
        """The largest error over its tolerance. `out` [batch, heads, positions, head_dim]."""
        if self.wanted is None:
            positions = self.positions[self.looked] if self.shape.causal else None
            self.wanted = cases.reference(self.q[:, self.looked], self.all_k, self.all_v, positions)
        return cases.farthest(out[:, :, self.looked], self.wanted)


class Ours(Launched):
    """ring_attention() of a group, as `name`."""

    def __init__(self, name, case, group, executor, **options):
        shape = case.shape
        self.name, self.case, self.executor = name, case, executor
        self.operation = group.ring_attention(batch=shape.batch, sequence=shape.sequence, heads=shape.heads, kv_heads=shape.kv_heads,
                                              head_dim=shape.head_dim, causal=shape.causal, executor=executor, **options)
        self.launch = self.operation.bind(case.q, case.k, case.v, case.out, lse=case.lse, deadline=DEADLINE)

    def result(self):
        return self.case.out.transpose(1, 2)


class Floor(cases.Ours):
    """attention() of a rank alone, with as much work."""

    name = "floor"
