"""The backward pass of attention: shapes, operands, and those who compute it: mkernel, and cuDNN by way of PyTorch."""
import dataclasses

import torch
import torch.nn.functional as F

import cases
from measure import DEADLINE, Launched, Theirs

VERIFIED = 2  # heads of keys, each of a random sequence, whose gradients are verified


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

    def __init__(self, shape, device):
        self.forward = []
        of_q = (shape.batch, shape.sequence, shape.heads, shape.head_dim)
        self.d_out = torch.empty(of_q, dtype=torch.bfloat16, device=device)
        self.d_out_by_head = torch.empty_like(self.d_out.transpose(1, 2), memory_format=torch.contiguous_format)
        super().__init__(shape, device)
        self.gradients = [torch.empty_like(x) for x in (self.q, self.k, self.v)]

    def renew(self):
        super().renew()
        self.d_out.normal_()
        self.d_out_by_head.copy_(self.d_out.transpose(1, 2))
        for run in self.forward:
            run()

    def poison(self):
        for x in self.gradients:
            x.fill_(float("nan"))

    def reference(self):
        """[(sequence, head of keys, gradients of `looked` rows, what they may be off by)], float32; those of q for every head."""
        shape = self.shape
        group, scale = shape.heads // shape.kv_heads, shape.head_dim**-0.5
        found = []
        for _ in range(VERIFIED):
            batch, kv_head = (int(torch.randint(most, ())) for most in (shape.batch, shape.kv_heads))
            k, v = (x[batch, :, kv_head].float() for x in (self.k, self.v))
            d_k, d_v, off_k, off_v = (torch.zeros_like(k[self.looked]) for _ in range(4))
            d_q, off_q = [], []
            for head in range(kv_head * group, (kv_head + 1) * group):
                q, d_out = (x[batch, :, head].float() for x in (self.q, self.d_out))
                weights = (q @ k.T).mul_(scale)
                if shape.causal:
                    weights.masked_fill_(torch.ones_like(weights, dtype=torch.bool).triu_(1), float("-inf"))
                weights = weights.softmax(dim=1)
                out = weights @ v
                rounding = cases.UNIT * (out * d_out).abs().sum(dim=1, keepdim=True)  # of the output that delta is made of
                d_scores = (d_out @ v.T).sub_((out * d_out).sum(dim=1, keepdim=True)).mul_(weights).mul_(scale)
                # Gradients of scores are rounded before they meet queries and keys, and so is the result.
                off = d_scores.abs().mul_(cases.UNIT).add_(weights * (scale * rounding))
                d_q.append(d_scores[self.looked] @ k)
                off_q.append(off[self.looked] @ k.abs())
                # Whoever copies shared keys for every head rounds each head's gradients, too.
                of_k, of_v = d_scores[:, self.looked].T @ q, weights[:, self.looked].T @ d_out
                d_k += of_k
                off_k += off[:, self.looked].T @ q.abs() + cases.UNIT * of_k.abs()
                d_v += of_v
                off_v += cases.UNIT * (weights[:, self.looked].T @ d_out.abs() + of_v.abs())
                del weights, d_scores, off
            wanted = (torch.stack(d_q, 1), d_k[:, None], d_v[:, None])
            offs = (torch.stack(off_q, 1), off_k[:, None], off_v[:, None])
            found.append((batch, kv_head, wanted, [1.01 * off + cases.UNIT * x.abs() + 1e-5 for off, x in zip(offs, wanted)]))
        return found

    def wrong(self, gradients):
        """The largest error over its tolerance. `gradients`: of q, k and v, [batch, sequence, heads, head_dim]."""
        if self.wanted is None:
            self.wanted = self.reference()
        group, worst = self.shape.heads // self.shape.kv_heads, 0.0
        for batch, kv_head, wanted, tolerances in self.wanted:
            heads = (slice(kv_head * group, (kv_head + 1) * group), slice(kv_head, kv_head + 1), slice(kv_head, kv_head + 1))
            for x, of, expected, tolerance in zip(gradients, heads, wanted, tolerances):
                off = (x[batch, self.looked, of].float() - expected).abs() / tolerance
                worst = max(worst, float("inf") if off.isnan().any() else off.max().item())
        return worst


class Ours(Launched):
    name = "mkernel"

    def __init__(self, case, group, executor, **options):
        shape = case.shape
        self.case, self.executor = case, executor
        sizes = {"batch": shape.batch, "sequence": shape.sequence, "heads": shape.heads, "kv_heads": shape.kv_heads,
                 "head_dim": shape.head_dim, "causal": shape.causal, "executor": executor}
        self.attention = group.attention(**sizes)
        self.outputs = self.attention.bind(case.q, case.k, case.v, case.out, lse=case.lse, deadline=DEADLINE)
        self.operation = group.attention_backward(**sizes, **options)
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
        case.forward.append(self.run_forward)
        self.run_forward()

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
    rows = [x.transpose(1, 2) for x in (case.q, case.k, case.v, case.d_out)]
    theirs = []
    for name, operands in (("cudnn_rows", rows), ("cudnn_heads", [*case.by_head, case.d_out_by_head])):
        try:
            theirs.append(Cudnn(name, case, operands))
        except RuntimeError as error:  # what cuDNN does not take
            case.forward = [run for run in case.forward if getattr(run.__self__, "held", 1) is not None]
            print(f"{case.shape.name}: {name}: {str(error).splitlines()[0]}", flush=True)
    return [*ours, *theirs]
