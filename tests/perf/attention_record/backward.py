"""The backward pass of attention: shapes, operands, and those who compute it: mkernel, and cuDNN by way of PyTorch."""
import dataclasses
import functools

import torch
import torch.nn.functional as F

import cases
from measure import DEADLINE, Launched, Theirs

VERIFIED = 2       # heads of keys, each of a random sequence, whose gradients are verified
SCORES = 1 << 26   # that a reference has at a time: 256 MiB in float32


@dataclasses.dataclass(frozen=True)
class Shape(cases.Shape):
    op = "attention_backward"

    @property
    def name(self):
        return super().name + "-backward"

    def flops(self):
        """Of the five products, without what the mask hides."""
        return 2.5 * super().flops()


SHAPES = [
    *(Shape(4, 16, 16, 128, sequence, causal, 0.88) for causal in (False, True) for sequence in (6144, 12288)),
    *(Shape(4, 16, 16, 64, 12288, causal, 0.88) for causal in (False, True)),
    *(Shape(1, 64, 8, 128, 8192, causal, 0.88) for causal in (False, True)),
]


class Case(cases.Case):
    """Operands of one shape; `forward` has what computes their outputs, which contenders do for themselves."""

    def __init__(self, shape, device, copies=True):
        self.forward = []
        of_q = (shape.batch, shape.sequence, shape.heads, shape.head_dim)
        self.d_out = torch.empty(of_q, dtype=torch.bfloat16, device=device)
        self.d_out_by_head = torch.empty_like(self.d_out.transpose(1, 2), memory_format=torch.contiguous_format) if copies else None
        super().__init__(shape, device, copies)
        self.gradients = [torch.empty_like(x) for x in (self.q, self.k, self.v)]

    def renew(self):
        super().renew()
        self.looked_keys = torch.randint(self.shape.all_keys, (cases.LOOKED,), device=self.k.device)
        self.d_out.normal_()
        if self.d_out_by_head is not None:
            self.d_out_by_head.copy_(self.d_out.transpose(1, 2))
        for run in self.forward:
            run()

    def poison(self):
        for x in self.gradients:
            x.fill_(float("nan"))

    def wrong(self, gradients):
        """The largest error over its tolerance. `gradients`: of q, k and v, [batch, sequence, heads, head_dim]."""
        if self.wanted is None:
            self.wanted = [self._wanted_of_heads() for _ in range(VERIFIED)]
        return max(farthest(gradients, self.looked, self.looked_keys, *wanted) for wanted in self.wanted)

    def _wanted_of_heads(self):
        """(sequence, heads of queries, head of keys, reference())."""
        batch, heads, kv_head = sampled_heads(self.shape)
        q, d_out = (x[batch, :, heads] for x in (self.q, self.d_out))
        k, v = (x[batch, :, kv_head] for x in (self.k, self.v))
        rows = torch.arange(len(q), device=q.device)
        return batch, heads, kv_head, reference(q, k, v, d_out, self.looked, self.looked_keys, [rows], self.shape.causal)


def sampled_heads(shape):
    """(A random sequence, the heads of queries that share a random head of keys, that head)."""
    batch, kv_head = (int(torch.randint(most, ())) for most in (shape.batch, shape.kv_heads))
    group = shape.heads // shape.kv_heads
    return batch, slice(kv_head * group, (kv_head + 1) * group), kv_head


def reference(q, k, v, d_out, looked_q, looked_k, parts, causal, roundings=1):
    """[(gradient, what it may be off by)] of the queries `looked_q`, and of the keys and values `looked_k`, float32 [looked, heads,
    head_dim]. `q`, `d_out` [queries, heads, head_dim] of the heads that share `k`, `v` [keys, head_dim]. `parts`: all queries; what
    those of a part give of a key's gradient may be rounded before it is summed, so many times on its way. Causal: as many queries as
    keys."""
    k, v = k.float(), v.float()
    d_q, off_q = [], []
    d_k, d_v, off_k, off_v = (torch.zeros_like(k[looked_k]) for _ in range(4))
    for head in range(q.shape[1]):
        rows = Rows(q[looked_q, head], d_out[looked_q, head], k, v, looked_q if causal else None)
        d_scores, off = rows.gradients(slice(None), v)
        d_q.append(d_scores @ k)
        off_q.append(off @ k.abs())
        for part in parts:
            of_k, of_v = torch.zeros_like(d_k), torch.zeros_like(d_v)
            for some in part.split(max(1, SCORES // len(k))):
                rows = Rows(q[some, head], d_out[some, head], k, v, some if causal else None)
                d_scores, off = rows.gradients(looked_k, v[looked_k])
                weights = rows.weights[:, looked_k]
                of_k += d_scores.T @ rows.q
                off_k += off.T @ rows.q.abs()
                of_v += weights.T @ rows.d_out
                off_v += cases.UNIT * (weights.T @ rows.d_out.abs())
            # Whoever copies shared keys for every head rounds each head's gradients, too.
            d_k += of_k
            off_k += roundings * cases.UNIT * of_k.abs()
            d_v += of_v
            off_v += roundings * cases.UNIT * of_v.abs()
    found = ((torch.stack(d_q, 1), torch.stack(off_q, 1)), (d_k[:, None], off_k[:, None]), (d_v[:, None], off_v[:, None]))
    return [(gradient, 1.01 * off + cases.UNIT * gradient.abs() + 1e-5) for gradient, off in found]


class Rows:
    """Some queries of a head, in float32, and their weights of all keys. `positions` of them among the keys, behind which they see none;
    None: they see all."""

    def __init__(self, q, d_out, k, v, positions):
        self.q, self.d_out, self.scale = q.float(), d_out.float(), q.shape[1] ** -0.5
        self.weights = (self.q @ k.T).mul_(self.scale)
        if positions is not None:
            self.weights.masked_fill_(torch.arange(len(k), device=k.device) > positions[:, None], float("-inf"))
        self.weights = self.weights.softmax(dim=1)
        products = (self.weights @ v).mul_(self.d_out)
        self.delta = products.sum(dim=1, keepdim=True)
        self.rounding = cases.UNIT * products.abs().sum(dim=1, keepdim=True)  # of the output that delta is made of

    def gradients(self, keys, v):
        """(Gradients of the scores with some keys, what they may be off by); `v` of these keys."""
        weights = self.weights[:, keys]
        d_scores = (self.d_out @ v.T).sub_(self.delta).mul_(weights).mul_(self.scale)
        # They are rounded before they meet queries and keys.
        return d_scores, cases.UNIT * d_scores.abs() + weights * (self.scale * self.rounding)


def farthest(gradients, looked_q, looked_k, batch, heads, kv_head, wanted):
    """The largest error of `gradients` over its tolerance; `wanted` is a reference() of these heads. `looked_q` and `looked_k`: where its
    rows are."""
    found = (gradients[0][batch, looked_q, heads], *(x[batch, looked_k, kv_head : kv_head + 1] for x in gradients[1:]))
    offs = [(x.float() - expected).abs() / tolerance for x, (expected, tolerance) in zip(found, wanted)]
    return max(float("inf") if off.isnan().any() else off.max().item() for off in offs)


class Ours(Launched):
    name = "mkernel"

    def __init__(self, case, group, executor, **options):
        shape = case.shape
        self.case, self.executor = case, executor
        sizes = {"batch": shape.batch, "sequence": shape.sequence, "keys": shape.keys, "heads": shape.heads, "kv_heads": shape.kv_heads,
                 "head_dim": shape.head_dim, "causal": shape.causal, "executor": executor, **options}
        self.attention = group.attention(**sizes)
        self.outputs = self.attention.bind(case.q, case.k, case.v, case.out, lse=case.lse, deadline=DEADLINE)
        self.operation = group.attention_backward(**sizes)
        self.launch = self.operation.bind(case.q, case.k, case.v, case.out, case.d_out, case.lse, *case.gradients, deadline=DEADLINE)
        case.forward.append(self.run_forward)
        self.run_forward()

    def run_forward(self):
        if self.executor == "cuda":
            self.outputs.enqueue(torch.cuda.current_stream().cuda_stream)
        else:
            self.outputs.run()

    def result(self):
        return self.case.gradients

    def close(self):
        self.attention.close()
        super().close()


class Cudnn(Theirs):
    """`operands`: q, k, v and the gradient of the output, [batch, heads, sequence, head_dim], of any strides. On the CPU it is what
    PyTorch has there."""

    def __init__(self, name, case, operands):
        self.name, self.case, self.operands, self.held = name, case, operands, None
        self.roundings = 1.0 if case.q.is_cuda else 2.0  # in host memory those of heads that share keys are a little farther off
        self.run_forward()
        case.forward.append(self.run_forward)

    def run_forward(self):
        """Into the same memory every time, as graphs want it."""
        q, k, v, _ = self.operands
        if not q.is_cuda:
            self.held = [x.detach().requires_grad_() for x in (q, k, v)]
            return
        made = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, self.case.shape.causal, False)
        if self.held is None:
            self.held = list(made)
        else:
            for old, new in zip(self.held[:2], made[:2]):
                old.copy_(new)

    def __call__(self):
        q, k, v, d_out = self.operands
        if not q.is_cuda:
            with torch.enable_grad():
                shared = q.shape[1] != k.shape[1]
                out = F.scaled_dot_product_attention(*self.held, is_causal=self.case.shape.causal, enable_gqa=shared)
                made = torch.autograd.grad(out, self.held, d_out)
        else:
            out, lse, cum_q, cum_k, max_q, max_k, seed, offset = self.held[:8]
            made = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
                d_out, q, k, v, out, lse, seed, offset, None, cum_q, cum_k, max_q, max_k, 0.0, self.case.shape.causal)
        return [x.transpose(1, 2) for x in made]  # as mkernel gives them


def contenders(case, group, executor, **options):
    """`group` None: PyTorch alone. Where heads share keys, cuDNN gets them as they are; if it refuses, it is left out."""
    ours = [] if group is None else [Ours(case, group, executor, **options)]
    theirs = []
    for name, make in on_cudnn(case).items():
        try:
            theirs.append(make())
        except RuntimeError as error:  # what cuDNN does not take
            print(f"{case.shape.name}: {name}: {str(error).splitlines()[0]}", flush=True)
    return [*ours, *theirs]


def on_cudnn(case):
    """By name what makes the contender. Of a case with copies."""
    rows = [x.transpose(1, 2) for x in (case.q, case.k, case.v, case.d_out)]
    layouts = {"cudnn_rows": rows, "cudnn_heads": [*case.by_head, case.d_out_by_head]}
    return {name: functools.partial(Cudnn, name, case, operands) for name, operands in layouts.items()}
