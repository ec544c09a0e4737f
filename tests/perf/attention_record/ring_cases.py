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


class Held:
    """Operands of one rank of the forward pass, [batch, positions, heads, head_dim] as ring_attention() takes them. `positions` of the
    sequence that each rank holds, in its order. `nodes`: over which what the ranks compute is summed."""

    nodes = 1

    def __init__(self, shape, world, rank, device):
        self.shape, self.world, self.rank = shape, world, rank
        self.held = [held(shape, world, source) for source in range(world)]
        self.positions = [torch.cat([torch.arange(*part, device=device) for part in parts]) for parts in self.held]
        of_q, of_k = ((shape.batch, len(self.positions[rank]), heads, shape.head_dim) for heads in (shape.heads, shape.kv_heads))
        self.q, self.k, self.v, self.out = (
            torch.empty(size, dtype=torch.bfloat16, device=device) for size in (of_q, of_k, of_k, of_q))
        self.lse = torch.empty(shape.batch, shape.heads, of_q[1], dtype=torch.float32, device=device)
        self.generator = torch.Generator(device)
        self.number = 0

    def run_forward(self, clock):
        """On all ranks at once, what the measured operation needs of the forward pass: nothing."""

    def looked_rows(self):
        """Random ones of those that this rank holds."""
        return torch.randint(len(self.positions[self.rank]), (cases.LOOKED,), device=self.q.device)


class RingCase(Held):
    """`all_k` and `all_v`: of the sequence."""

    def __init__(self, shape, world, rank, device):
        super().__init__(shape, world, rank, device)
        of_all = (shape.batch, shape.sequence, shape.kv_heads, shape.head_dim)
        self.all_k, self.all_v = (torch.empty(of_all, dtype=torch.bfloat16, device=device) for _ in range(2))
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
        self.looked = self.looked_rows()
        self.wanted = None

    def poison(self):
        self.out.fill_(float("nan"))

    def wrong(self, out):
        """The largest error over its tolerance. `out` [batch, heads, positions, head_dim]."""
        if self.wanted is None:
            positions = self.positions[self.rank][self.looked] if self.shape.causal else None
            self.wanted = cases.reference(self.q[:, self.looked], self.all_k, self.all_v, positions)
        return cases.farthest(out[:, :, self.looked], self.wanted)


def sizes(shape, executor):
    """As the operations take them."""
    return {"batch": shape.batch, "sequence": shape.sequence, "heads": shape.heads, "kv_heads": shape.kv_heads,
            "head_dim": shape.head_dim, "causal": shape.causal, "executor": executor}


class Ours(Launched):
    """ring_attention() of a group, as `name`."""

    def __init__(self, name, case, group, executor, **options):
        self.name, self.case, self.executor = name, case, executor
        self.operation = group.ring_attention(**sizes(case.shape, executor), **options)
        self.launch = self.operation.bind(case.q, case.k, case.v, case.out, lse=case.lse, deadline=DEADLINE)

    def result(self):
        return self.case.out.transpose(1, 2)


class Floor(cases.Ours):
    """attention() of a rank alone, with as much work."""

    name = "floor"


ALONE = cases  # operands and contenders of a rank alone
