"""Shapes of attention, their operands, and those who compute it: mkernel, and PyTorch's scaled_dot_product_attention on cuDNN."""
import contextlib
import dataclasses
import functools
from typing import Optional

import torch
import torch.nn.functional as F

from measure import DEADLINE, Launched, Theirs, Wrong

UNIT = 2.0 ** -8  # of bf16
LOOKED = 64      # queries of each head whose outputs are verified


@dataclasses.dataclass(frozen=True)
class Shape:
    """`bar`: what part of cuDNN's rate is asked for. `keys`: None = as many as queries, which are `sequence`."""

    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    sequence: int
    causal: bool
    bar: Optional[float]
    keys: Optional[int] = None
    op = "attention"

    @property
    def all_keys(self):
        return self.sequence if self.keys is None else self.keys

    @property
    def name(self):
        heads = str(self.heads) if self.heads == self.kv_heads else f"{self.heads}:{self.kv_heads}"
        return f"B{self.batch}-H{heads}-D{self.head_dim}-S{self.sequence}-{'causal' if self.causal else 'full'}"

    def flops(self):
        """Of both products, without what the mask hides."""
        return 4 * self.batch * self.heads * self.sequence * self.all_keys * self.head_dim * (0.5 if self.causal else 1)


SHAPES = [
    *(Shape(4, 16, 16, 128, sequence, causal, 0.97 if causal else 1.0)
      for causal in (False, True) for sequence in (3072, 6144, 12288, 24576)),
    *(Shape(4, 16, 16, 64, 12288, causal, 0.97) for causal in (False, True)),
    *(Shape(1, 64, 8, 128, 8192, causal, 0.97) for causal in (False, True)),
    # The last two are attention of video models.
    Shape(1, 24, 24, 128, 32768, False, 1.0),
    Shape(1, 40, 40, 128, 75600, False, 1.0),
]


def small(shape):
    """For a try in host memory."""
    return dataclasses.replace(shape, batch=1, heads=shape.heads // shape.kv_heads * 2, kv_heads=2, sequence=200 + shape.sequence % 7)


class Case:
    """Operands of one shape, [batch, sequence, heads, head_dim] as mkernel takes them."""

    def __init__(self, shape, device, copies=True):
        """`copies`: also with the heads outside, where cuDNN may be faster, and with keys and values for every head."""
        self.shape = shape
        of_q = (shape.batch, shape.sequence, shape.heads, shape.head_dim)
        of_k = (shape.batch, shape.all_keys, shape.kv_heads, shape.head_dim)
        self.q, self.k, self.v, self.out = (torch.empty(size, dtype=torch.bfloat16, device=device) for size in (of_q, of_k, of_k, of_q))
        self.lse = torch.empty(shape.batch, shape.heads, shape.sequence, dtype=torch.float32, device=device)
        self.by_head = self.expanded = None
        if copies:
            self._copy()
        self.renew()

    def _copy(self):
        self.by_head = [torch.empty_like(x.transpose(1, 2), memory_format=torch.contiguous_format) for x in (self.q, self.k, self.v)]
        group = self.shape.heads // self.shape.kv_heads  # should cuDNN not take keys and values that heads share
        self.expanded = [self.by_head[0], *(x.repeat_interleave(group, 1) for x in self.by_head[1:])] if group > 1 else None

    def renew(self):
        """New inputs, spread normally: power, and with it the clock, depends on the values."""
        for x in (self.q, self.k, self.v):
            x.normal_()
        for x, copy in zip((self.q, self.k, self.v), self.by_head or ()):
            copy.copy_(x.transpose(1, 2))
        if self.expanded:
            for x, copy in zip(self.by_head[1:], self.expanded[1:]):
                copy.unflatten(1, (self.shape.kv_heads, -1)).copy_(x.unsqueeze(2))
        self.looked = torch.randint(self.shape.sequence, (LOOKED,), device=self.q.device)
        self.wanted = None

    def poison(self):
        self.out.fill_(float("nan"))

    def wrong(self, out):
        """The largest error over its tolerance. `out` [batch, heads, sequence, head_dim]."""
        if self.wanted is None:
            positions = self.looked + (self.shape.all_keys - self.shape.sequence) if self.shape.causal else None
            self.wanted = reference(self.q[:, self.looked], self.k, self.v, positions)
        return farthest(out[:, :, self.looked], self.wanted)


def reference(q, k, v, positions):
    """(outputs, what they may be off by) of some queries [batch, looked, heads, head_dim], float32 [batch, heads, looked, head_dim].
    `positions` of these queries among the keys, behind which they see none; None: they see all."""
    group = q.shape[2] // k.shape[2]
    outputs, tolerances = [], []
    for head in range(q.shape[2]):
        rows = q[:, :, head].float()
        keys, values = (x[:, :, head // group].float() for x in (k, v))
        scores = rows @ keys.transpose(1, 2) * rows.shape[2] ** -0.5
        if positions is not None:
            scores.masked_fill_(torch.arange(k.shape[1], device=q.device) > positions[:, None], float("-inf"))
        weights = scores.softmax(dim=2)
        outputs.append(weights @ values)
        # Weights are rounded before they meet the values, and so is the result.
        tolerances.append(UNIT * (outputs[-1].abs() + 1.01 * (weights @ values.abs())) + 1e-5)
    return torch.stack(outputs, 1), torch.stack(tolerances, 1)


def farthest(out, wanted):
    """The largest error of `out` over its tolerance; `wanted` is a reference()."""
    off = (out.float() - wanted[0]).abs() / wanted[1]
    return float("inf") if off.isnan().any() else off.max().item()


def checked(contender, call, clock):
    """(milliseconds, the largest error over its tolerance) of `call`, which is the contender or stands for it."""
    case = contender.case
    case.poison()
    clock.synchronize()
    out, ms = clock.time(call)
    clock.synchronize()
    contender.raise_failure()
    off = case.wrong(out) / contender.roundings
    if not off <= 1:
        raise Wrong(f"{contender.name}: an element is off by {off:.3g} times what it may be")
    return ms, off


class Ours(Launched):
    name = "mkernel"

    def __init__(self, case, group, executor, **options):
        shape = case.shape
        self.case, self.executor = case, executor
        self.operation = group.attention(batch=shape.batch, sequence=shape.sequence, heads=shape.heads, kv_heads=shape.kv_heads, keys=shape.keys,
                                         head_dim=shape.head_dim, causal=shape.causal, executor=executor, **options)
        self.launch = self.operation.bind(case.q, case.k, case.v, case.out, lse=case.lse, deadline=DEADLINE)

    def result(self):
        return self.case.out.transpose(1, 2)


class Cudnn(Theirs):
    """`operands`: q, k, v, [batch, heads, sequence, head_dim], of any strides. On the CPU it is what PyTorch has there."""

    def __init__(self, name, case, operands):
        self.name, self.case, self.operands = name, case, operands

    def __call__(self):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        shared = self.operands[0].shape[1] != self.operands[1].shape[1]
        forced = sdpa_kernel(SDPBackend.CUDNN_ATTENTION) if self.case.q.is_cuda else contextlib.nullcontext()
        with forced:
            return F.scaled_dot_product_attention(*self.operands, is_causal=self.case.shape.causal, enable_gqa=shared)


def contenders(case, group, executor, **options):
    """`group` None: PyTorch alone."""
    ours = [] if group is None else [Ours(case, group, executor, **options)]
    return [*ours, *(make() for make in on_cudnn(case).values())]


def on_cudnn(case):
    """By name what makes the contender. Of a case with copies."""
    rows = [x.transpose(1, 2) for x in (case.q, case.k, case.v)]
    layouts = {"cudnn_rows": rows, "cudnn_heads": case.by_head, "cudnn_expanded": case.expanded}
    return {name: functools.partial(Cudnn, name, case, operands) for name, operands in layouts.items() if operands}
