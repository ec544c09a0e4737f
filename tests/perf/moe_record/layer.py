"""Mixtures of experts: shapes, the inputs of every iteration, what is wanted of them, and, of a rank alone, PyTorch's chain."""
import dataclasses
import itertools
from typing import Optional

import torch
import torch.nn.functional as F

UNIT = 2.0 ** -8  # largest relative rounding error of bf16
SUMS = 2e-4       # of fp32 sums in tensor cores, relative to the size of an element
SIGMAS = 8.0      # of independent rounding errors that add up
TORCH_ROUNDINGS = 3.0  # PyTorch's chain also rounds gates, ups, weights and weighted rows to bf16
HBM_BYTES_PER_SECOND = 4.3e12  # that a kernel which only reads reaches


@dataclasses.dataclass(frozen=True)
class Shape:
    """`intermediate` = 0: one product with `n` columns (moe_dispatch_gemm; `grouped`: of rows that are sorted already). A bar is
    TFLOP/s, times the reading of weights, or how many times as fast as PyTorch."""

    name: str
    model: str
    tokens: int
    hidden: int
    intermediate: int
    n: int
    experts: int
    topk: int
    bar_tflops: Optional[float] = None
    bar_reading: Optional[float] = None
    bar_over_torch: Optional[float] = None
    grouped: bool = False

    @property
    def rows(self):
        return self.tokens * self.topk

    @property
    def wide(self):
        """Columns of the first product."""
        return 2 * self.intermediate or self.n

    def flops(self):
        """Of the routed products alone."""
        return 2 * self.rows * (self.hidden * self.wide + self.intermediate * self.n)

    def expert_bytes(self):
        return 2 * (self.hidden * self.wide + self.intermediate * self.n)

    def bar_ms(self, weight_bytes, torch_ms):
        """Milliseconds that reach the bar, when experts with so many bytes of weights have rows, and PyTorch takes so long; None:
        there is no bar."""
        if self.bar_tflops:
            return self.flops() / self.bar_tflops / 1e9
        if self.bar_over_torch:
            return torch_ms / self.bar_over_torch
        return self.bar_reading * 1e3 * weight_bytes / HBM_BYTES_PER_SECOND if self.bar_reading else None


def _grouped(rows, **bar):
    """The first product of those layers, gates and ups."""
    return Shape(f"grouped-{rows}", "DeepSeek-V3 sizes, 64 experts", rows // 8, 7168, 0, 4096, 64, 8, grouped=True, **bar)


SHAPES = (
    _grouped(64, bar_reading=1.10),
    _grouped(512, bar_reading=1.10),
    _grouped(4096, bar_over_torch=1.1),
    _grouped(16384, bar_over_torch=1.1),
    _grouped(65536, bar_over_torch=1.08),
    Shape("layer-16384", "DeepSeek-V3 sizes, 64 experts", 2048, 7168, 2048, 7168, 64, 8, bar_tflops=480),
    Shape("layer-65536", "DeepSeek-V3 sizes, 64 experts", 8192, 7168, 2048, 7168, 64, 8, bar_tflops=620),
    Shape("qwen3-65536", "Qwen3-30B-A3B, 32 experts", 8192, 2048, 768, 2048, 32, 8, bar_tflops=480),
    Shape("mixtral-16384", "Mixtral-8x7B, 2 experts", 8192, 4096, 14336, 4096, 2, 2, bar_tflops=650),
    Shape("decode-512", "DeepSeek-V3 sizes, 64 experts", 64, 7168, 2048, 7168, 64, 8, bar_reading=1.15),
    Shape("dispatch-512", "DeepSeek-V3 sizes, 64 experts", 64, 7168, 0, 4096, 64, 8),
    Shape("dispatch-16384", "DeepSeek-V3 sizes, 64 experts", 2048, 7168, 0, 4096, 64, 8),
    Shape("dispatch-65536", "DeepSeek-V3 sizes, 64 experts", 8192, 7168, 0, 4096, 64, 8),
)
ROUTINGS = {"random": 0.0, "zipf 1.2": 1.2}  # exponent of the popularity of experts


def small(shape):
    """The same with little sizes, to try the script in host memory."""
    return dataclasses.replace(shape, tokens=max(8, shape.tokens // 128), hidden=64, intermediate=min(32, shape.intermediate),
                               n=64 if shape.intermediate else 48)


def routings(shape):
    """Where every token goes to all experts there is one routing."""
    return ROUTINGS if shape.topk < shape.experts else {"all experts": 0.0}


class Weights:
    """Of all experts, each matrix transposed, as PyTorch keeps weights: w1 [experts, wide, hidden], gates before ups, and w2
    [experts, n, intermediate], or None. Activations keep their size."""

    def __init__(self, shape, device):
        def matrices(outputs, inputs):
            return torch.empty(shape.experts, outputs, inputs, dtype=torch.bfloat16, device=device).normal_(0, inputs ** -0.5)

        self.w1 = matrices(shape.wide, shape.hidden)
        self.w2 = matrices(shape.n, shape.intermediate) if shape.intermediate else None


def products(rows, ends, w1, w2):
    """PyTorch's, of rows that are sorted by expert: SwiGLU lies between two of them, and w2 is None where there is one."""
    rows = torch._grouped_mm(rows, w1.transpose(1, 2), offs=ends)
    if w2 is None:
        return rows
    gate, up = rows.chunk(2, dim=1)
    return torch._grouped_mm(F.silu(gate) * up, w2.transpose(1, 2), offs=ends)


def summed(rows, order, weights):
    """The weighted sum of each token's rows, which `order` sorts by expert and which are overwritten. weights [tokens, topk]."""
    rows *= weights.flatten()[order].to(rows.dtype)[:, None]
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device=order.device)
    return rows[back].view(*weights.shape, rows.shape[1]).sum(1)


class Routed:
    """One shape and routing, the tokens of one rank. renew() writes new inputs where the operation reads them; wrong() judges what it
    made of these. `common`: draws what is the same on every rank, which is the popularity of experts."""

    def __init__(self, shape, exponent, weights, device, common=None):
        self.shape, self.device, self.common = shape, device, common
        self.w1, self.w2 = weights.w1, weights.w2
        self.popularity = -exponent * torch.arange(1, shape.experts + 1, device=device).float().log()
        self.numbers = torch.arange(shape.experts, dtype=torch.int32, device=device)
        bf16 = {"dtype": torch.bfloat16, "device": device}
        self.x = torch.empty(shape.tokens, shape.hidden, **bf16)
        self.topk = torch.empty(shape.tokens, shape.topk, dtype=torch.int32, device=device)
        self.weights = torch.empty(shape.tokens, shape.topk, dtype=torch.float32, device=device)
        self.y = torch.empty(shape.tokens, shape.n, **bf16)
        self.ends = torch.empty(shape.experts, dtype=torch.int32, device=device)

    def renew(self):
        """New tokens, weights and routing, and which experts are popular."""
        self.route()
        self.x.normal_()
        self.weights.copy_(torch.rand_like(self.weights) + 0.1)
        self.weights.div_(self.weights.sum(1, keepdim=True))
        numbers, order = self.topk.flatten().sort(stable=True)
        self.ends.copy_(torch.searchsorted(numbers, self.numbers, right=True))
        self._sorted(order)
        self._want(order)

    def route(self):
        """Draws each token's experts, without putting back."""
        chances = self.popularity[torch.randperm(self.shape.experts, generator=self.common).to(self.device)]
        noise = torch.rand(len(self.topk), self.shape.experts, device=self.device).clamp_(1e-12, 1 - 1e-7)
        self.topk.copy_((chances - (-noise.log()).log()).topk(self.shape.topk, dim=1).indices)

    def matrices(self, expert):
        """(w1, w2) of one of the shape's experts."""
        return self.w1[expert], None if self.w2 is None else self.w2[expert]

    def _sorted(self, order):
        """Called with the order that sorts the routed rows by expert."""

    def _want(self, order):
        """The result in fp32, and how far an element may be off: what is rounded to bf16 is each weighted row, the sum, and each
        value between the products, whose errors are independent."""
        shape, flat = self.shape, self.weights.flatten()
        self.wanted = torch.zeros(len(self.x), shape.n, device=self.device)
        magnitude = torch.zeros_like(self.wanted)
        squares = torch.zeros(len(self.x), 1, device=self.device)  # of the sizes of the weighted rows' elements
        self.weight_bytes = 0
        for expert, (begin, end) in enumerate(itertools.pairwise([0, *self.ends.tolist()])):
            if begin == end:
                continue
            self.weight_bytes += shape.expert_bytes()
            w1, w2 = self.matrices(expert)
            tokens, scale = order[begin:end] // shape.topk, flat[order[begin:end]][:, None]
            row = self.x[tokens].float()
            size = row.norm(dim=1, keepdim=True) * shape.hidden ** -0.5
            row = row @ w1.float().t()
            if shape.intermediate:
                gate, up = row.chunk(2, dim=1)
                row = F.silu(gate) * up
                size = row.norm(dim=1, keepdim=True) * shape.intermediate ** -0.5
                row = row @ w2.float().t()
            row *= scale
            self.wanted.index_add_(0, tokens, row)
            magnitude.index_add_(0, tokens, row.abs_())
            squares.index_add_(0, tokens, (scale * size).square_())
        between = SIGMAS * UNIT / 2 if shape.intermediate else 0.0
        self.tolerance = magnitude.mul_(2).add_(self.wanted.abs()).mul_(1.01 * UNIT).add_((between + SUMS) * squares.sqrt_())

    def wrong(self, y):
        """The largest error of the rows that there are over its tolerance; infinite where there is no number."""
        if len(self.wanted) == 0:
            return 0.0
        worst = ((y[: len(self.wanted)].float() - self.wanted).abs_() / self.tolerance).max().item()
        return worst if worst == worst else float("inf")


class Case(Routed):
    """Of a rank alone, beside PyTorch's chain."""

    def __init__(self, shape, exponent, weights, device):
        super().__init__(shape, exponent, weights, device)
        # What PyTorch's products alone read.
        self.sorted_x = torch.empty(shape.rows, shape.hidden, dtype=torch.bfloat16, device=device)

    def _sorted(self, order):
        torch.index_select(self.x, 0, order // self.shape.topk, out=self.sorted_x)

    def contenders(self):
        """PyTorch's: (name, function, largest error that it may have, in tolerances; 0: it is a floor, and not verified)."""
        return [("torch", self.torch_chain, TORCH_ROUNDINGS), ("products", self.torch_products, 0.0)]

    # ---- PyTorch

    def torch_products(self):
        """Of rows that are sorted by expert, without what moves them."""
        return products(self.sorted_x, self.ends, self.w1, self.w2)

    def torch_chain(self):
        """From tokens to tokens, as one writes it with torch._grouped_mm."""
        numbers, order = self.topk.flatten().sort()
        ends = torch.searchsorted(numbers, self.numbers, right=True, out_int32=True)
        return summed(products(self.x[order // self.shape.topk], ends, self.w1, self.w2), order, self.weights)


class GroupedCase(Case):
    """The product of rows that are sorted by expert, which stay sorted."""

    def __init__(self, shape, exponent, weights, device):
        super().__init__(shape, exponent, weights, device)
        self.y = torch.empty(shape.rows, shape.n, dtype=torch.bfloat16, device=device)

    def _want(self, order):
        """An element is rounded to bf16 once."""
        shape = self.shape
        self.wanted = torch.zeros(shape.rows, shape.n, device=self.device)
        self.weight_bytes = 0
        for expert, (begin, end) in enumerate(itertools.pairwise([0, *self.ends.tolist()])):
            if begin == end:
                continue
            self.weight_bytes += shape.expert_bytes()
            torch.mm(self.sorted_x[begin:end].float(), self.w1[expert].float().t(), out=self.wanted[begin:end])
        size = self.sorted_x.float().norm(dim=1, keepdim=True) * shape.hidden ** -0.5
        self.tolerance = self.wanted.abs().mul_(1.01 * UNIT).add_(SUMS * size)

    def contenders(self):
        return [("torch", self.torch_products, 1.0)]


def case_of(shape, *rest):
    return (GroupedCase if shape.grouped else Case)(shape, *rest)
