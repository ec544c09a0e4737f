"""What the ranks of the tests of the MoE operators have in common: layers of experts, their inputs, and what is wanted of them."""
from torch_rank import RANK, UNIT, WORLD, operand, torch

from mkernel.operations import block_range

OPS = torch.ops.mkernel
MOST = 11  # tokens of a rank
SIZES = (24, 20, 16)  # hidden, n, intermediate


class Layer:
    """The same experts on every rank, and this rank's part of them, on `device`. `n` is the number of outputs."""

    def __init__(self, experts=10, topk=3, dtype=torch.bfloat16, sizes=SIZES, seed=1, device="cpu"):
        self.experts, self.topk, self.dtype, self.device = experts, topk, dtype, device
        self.hidden, self.n, self.inner = sizes

        def matrices(number, k, n):
            return operand(seed + number, 0, (experts, k, n), torch.float32).mul(k ** -0.5).to(dtype)

        self.w = matrices(10, self.hidden, self.n)
        self.gate, self.up = matrices(20, self.hidden, self.inner), matrices(30, self.hidden, self.inner)
        self.down = matrices(40, self.inner, self.n)
        self.shared_inner = 2 * self.inner
        self.shared_gate, self.shared_up = (self._matrix(seed + number, self.hidden, self.shared_inner) for number in (50, 60))
        self.shared_down = self._matrix(seed + 70, self.shared_inner, self.n)
        self.mine = slice(*block_range(experts, WORLD, RANK))

    def _matrix(self, seed, k, n):
        return operand(seed, 0, (k, n), torch.float32).mul(k ** -0.5).to(self.dtype)

    def shared(self, transposed=False, halves=False, factors=None):
        """The operands of the shared expert, by name. `factors`: its weights."""
        gate, up = self.shared_gate, self.shared_up
        if not halves:
            gate, up = torch.cat([gate, up], 1), None
        weights = {"shared_w1": gate, "shared_w1_up": up, "shared_w2": self.shared_down}
        on_device = {name: None if w is None else w.to(self.device) for name, w in weights.items()}
        if transposed:
            on_device = {name: None if w is None else w.t().contiguous().t() for name, w in on_device.items()}
        return {**on_device, "shared_weights": factors}

    def part(self, all_experts, transposed=False):
        """This rank's experts; `transposed`: a view of weights as torch keeps them."""
        part = all_experts[self.mine].to(self.device)
        return part.transpose(1, 2).contiguous().transpose(1, 2) if transposed else part

    def expert(self, number, x, two):
        if not two:
            return x @ self.w[number].double()
        gate = x @ self.gate[number].double()
        return (gate * gate.sigmoid() * (x @ self.up[number].double())) @ self.down[number].double()

    def wanted(self, x, ids, weights, two, on_input=False, shared=None):
        """`on_input`: weights multiply x, in place of the results. `shared`: weights of the shared expert; None: there is none."""
        x, ids, weights = x.cpu(), ids.cpu(), weights.cpu()
        y = torch.zeros(x.shape[0], self.n, dtype=torch.float64)
        for number in range(self.experts):
            tokens, entries = (ids == number).nonzero(as_tuple=True)
            scale = weights[tokens, entries].double()[:, None]
            rows = x[tokens].double()
            y.index_add_(0, tokens, self.expert(number, scale * rows, two) if on_input else scale * self.expert(number, rows, two))
        if shared is not None:
            x = x.double()
            gate, up = x @ self.shared_gate.double(), x @ self.shared_up.double()
            y += shared.cpu().double()[:, None] * ((gate * gate.sigmoid() * up) @ self.shared_down.double())
        return y

    def inputs(self, seed, tokens, skewed=False):
        """x, topk_ids, topk_weights of this rank. `skewed`: low numbers far more often."""
        generator = torch.Generator().manual_seed(1000 * seed + RANK)
        chances = 1.0 / (1 + torch.arange(self.experts)) ** (2 if skewed else 0)
        chances = chances.expand(max(tokens, 1), -1)
        ids = torch.multinomial(chances, self.topk, generator=generator)[:tokens]
        weights = torch.rand(tokens, self.topk, generator=generator) + 0.1
        x = operand(seed, RANK, (tokens, self.hidden), self.dtype)
        return x.to(self.device), ids.to(self.device, torch.int32), weights.to(self.device)


def close(y, wanted):
    """Roundings of the intermediate values, of results that travel, and of their sum."""
    y = y.cpu()
    assert y.shape == wanted.shape, f"shape {tuple(y.shape)}, wanted {tuple(wanted.shape)}"
    wrong = ~((y.double() - wanted).abs() <= 8 * UNIT[y.dtype] * (wanted.abs() + 1))
    assert not wrong.any(), f"{int(wrong.sum())} of {wrong.numel()} elements are wrong"


def gemm(layer, inputs, name, transposed=False, **options):
    return OPS.moe_dispatch_gemm(*inputs, layer.part(layer.w, transposed), layer.experts, name, **options)


def moe(layer, inputs, name, transposed=False, halves=False, **options):
    gate, up = layer.gate, layer.up
    if not halves:
        gate, up = torch.cat([gate, up], 2), None
    parts = [None if w is None else layer.part(w, transposed) for w in (gate, up, layer.down)]
    return OPS.moe_layer(*inputs, *parts, layer.experts, name, **options)


def tokens_of(rank, call):
    """On some ranks none, and at the call of all 4 none at all."""
    return 0 if call == 4 or (rank + call) % WORLD == 2 else (5 * rank + 3 * call) % MOST + 1
