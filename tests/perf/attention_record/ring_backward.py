"""The operands of one rank of the backward pass of ring attention, and our operations on them. Those of every rank have seeds, so each rank
makes the heads of others that it needs for verification."""
import torch

import backward
import ring_cases
from measure import DEADLINE, Launched

NAMES = ("q", "k", "v", "d_out")


class RingCase(ring_cases.Held):
    """`whole`: what is verified, (sequence, heads of queries, head of keys, tensors of all positions by name)."""

    def __init__(self, shape, world, rank, device):
        super().__init__(shape, world, rank, device)
        self.d_out, self.forward = torch.empty_like(self.q), None
        self.gradients = [torch.empty_like(x) for x in (self.q, self.k, self.v)]
        self.renew()

    def renew(self):
        """New inputs, spread normally, on all ranks the next ones. What the forward pass makes of them is for run_forward()."""
        self.number += 1
        self.whole = [self._nothing_of_heads() for _ in range(backward.VERIFIED)]
        for source in range(self.world):
            for which, name in enumerate(NAMES):
                mine = getattr(self, name)
                of_source = mine if source == self.rank else mine.new_empty(mine.shape[0], len(self.positions[source]), *mine.shape[2:])
                self.generator.manual_seed((self.number * self.world + source) * len(NAMES) + which)
                of_source.normal_(generator=self.generator)
                for batch, heads, kv_head, tensors in self.whole:
                    tensors[name][self.positions[source]] = of_source[batch, :, kv_head if name in ("k", "v") else heads]
        self.looked, self.wanted = self.looked_rows(), None

    def _nothing_of_heads(self):
        batch, heads, kv_head = backward.sampled_heads(self.shape)
        of_k = (self.shape.sequence, self.shape.head_dim)
        of_q = (self.shape.sequence, heads.stop - heads.start, self.shape.head_dim)
        return batch, heads, kv_head, {name: self.q.new_empty(of_k if name in ("k", "v") else of_q) for name in NAMES}

    def run_forward(self, clock):
        """On all ranks at once: `out` and `lse`. Errors: those of mkernel."""
        clock.time(self.forward)
        clock.synchronize()
        self.forward.raise_failure()

    def poison(self):
        for x in self.gradients:
            x.fill_(float("nan"))

    def wrong(self, gradients):
        """The largest error over its tolerance. `gradients`: of q, k and v, [batch, positions, heads, head_dim]."""
        if self.wanted is None:
            looked = self.positions[self.rank][self.looked]
            self.wanted = [(*which, backward.reference(**tensors, looked_q=looked, looked_k=looked, parts=self.positions,
                                                       causal=self.shape.causal, roundings=min(self.nodes, 2))) for *which, tensors in self.whole]
        return max(backward.farthest(gradients, self.looked, self.looked, *wanted) for wanted in self.wanted)

    def digests(self):
        """Of the gradients; the same of the same bits."""
        return [x.view(torch.int32).sum(dtype=torch.int64).item() for x in self.gradients]


class Ours(Launched):
    """ring_attention_backward() of a group, as `name`, behind the forward pass that the case needs."""

    def __init__(self, name, case, group, executor, **options):
        self.name, self.case, self.executor = name, case, executor
        case.forward = ring_cases.Ours("forward pass", case, group, executor, **options)
        self.operation = group.ring_attention_backward(**ring_cases.sizes(case.shape, executor), **options)
        self.launch = self.operation.bind(case.q, case.k, case.v, case.out, case.d_out, case.lse, *case.gradients, deadline=DEADLINE)

    def result(self):
        return self.case.gradients

    def close(self):
        self.case.forward.close()
        super().close()


class Floor(backward.Ours):
    """attention_backward() of a rank alone, with as much work."""

    name = "floor"


ALONE = backward  # operands and contenders of a rank alone
