"""torch.ops.mkernel against torch.ops.symm_mem and against NCCL with cuBLAS: the layers of Llama 3, eager and in CUDA graphs.

What is wanted is what NCCL and cuBLAS make of the same inputs, in bf16. Tolerances, with u = 2^-8, bf16's largest relative rounding
error: a product is rounded once by either side, so two of them differ by 2u of it. A sum over W ranks rounds W products and up to
W - 1 sums of them, each by at most u of the sum T of their magnitudes, on either side: 2uWT, T being summed in the same way.
2^-7 sqrt(k) comes on top, k being that of all ranks in a sum: cuBLAS may cut k and round the products of the parts, as PyTorch allows
it by default. That is 2 % of the results' standard deviation, sqrt(k) / 3; 64 of 8192 columns that are missing change 9 % of it in
most elements."""
import typing

import torch
import torch.distributed as dist

import contest
from job import NEEDS_GPUS

ROUNDING = 2.0**-8


class Model(typing.NamedTuple):
    name: str
    hidden: int
    ffn: int
    heads: int
    kv_heads: int


LLAMA_70B = Model("Llama-3-70B", 8192, 28672, 64, 8)
LLAMA_405B = Model("Llama-3-405B", 16384, 53248, 128, 8)
SMALL = Model("small", 1024, 2816, 8, 8)
HEAD = 128  # elements


def layers(model, world):
    """(layer, operation, k, columns of each B) of a rank of `world`. The last two layers once for sequence parallelism, where rows
    are scattered, and once for an all-reduce."""
    kv = max(model.kv_heads // world, 1) * HEAD
    heads, ffn = model.heads * HEAD // world, model.ffn // world
    return (("q, k, v", "ag_gemm", model.hidden, (heads, kv, kv)), ("gate, up", "ag_gemm", model.hidden, (ffn, ffn)),
            ("attention out", "gemm_rs", heads, (model.hidden,)), ("down", "gemm_rs", ffn, (model.hidden,)),
            ("attention out", "gemm_ar", heads, (model.hidden,)), ("down", "gemm_ar", ffn, (model.hidden,)))


class Layer(contest.Case):
    """Operands and results of one operation. A B is what layers have: the transpose of a dense weight."""

    def __init__(self, job, m, k, ns):
        self.job, self.depth = job, k
        self.fresh, self.a = job.random(m, k), job.random(m, k)
        self.bs = [job.random(n, k).t() for n in ns]
        self.wanted = []
        self.contenders = {"mkernel": self.mkernel, **self.symm_mem(), "nccl_cublas": self.nccl if job.nccl else NEEDS_GPUS,
                           "product": self.product}

    def renew(self):
        self.fresh.uniform_(-1, 1)
        self.want()

    def refresh(self):
        self.a.copy_(self.fresh)

    def worst(self, results):
        floor = 2.0**-7 * self.depth**0.5
        return torch.stack([_worst(c, *wanted, floor) for c, wanted in zip(results, self.wanted, strict=True)]).max()

    def product(self):
        return [torch.mm(self.a, self.bs[0])]


class Gather(Layer):
    def __init__(self, job, m, k, ns):
        self.full = job.random(m, k)
        super().__init__(job, m // job.world, k, ns)

    def want(self):
        self.full.copy_(self.job.gather(self.fresh))
        self.wanted = [(product, product, 2 * ROUNDING) for product in self.product()]

    def product(self):
        return [torch.mm(self.full, b) for b in self.bs]

    def mkernel(self):
        return torch.ops.mkernel.fused_all_gather_matmul(self.a, self.bs, 0, self.job.group, return_A=False)[1]

    def symm_mem(self):
        gather = torch.ops.symm_mem.fused_all_gather_matmul
        return {"symm_mem": lambda: gather(self.a, self.bs, 0, self.job.group, return_A=False)[1]}

    def nccl(self):
        full = self.a.new_empty(self.full.shape)
        dist.all_gather_into_tensor(full, self.a)
        return [torch.mm(full, b) for b in self.bs]


class Sum(Layer):
    def __init__(self, job, m, k, ns):
        super().__init__(job, m, k, ns)
        self.depth = k * job.world

    def want(self):
        product = torch.mm(self.fresh, self.bs[0])
        self.wanted = [(self.reference(product), self.reference(product.abs()), 2 * ROUNDING * self.job.world)]


class Scatter(Sum):
    def reference(self, product):
        return self.job.reduce_scatter(product)

    def mkernel(self):
        return [torch.ops.mkernel.fused_matmul_reduce_scatter(self.a, self.bs[0], "sum", 0, self.job.group)]

    def symm_mem(self):
        scatter = torch.ops.symm_mem.fused_matmul_reduce_scatter
        return {"symm_mem": lambda: [scatter(self.a, self.bs[0], "sum", 0, self.job.group)]}

    def nccl(self):
        product = torch.mm(self.a, self.bs[0])
        mine = product.new_empty(product.shape[0] // self.job.world, product.shape[1])
        dist.reduce_scatter_tensor(mine, product)
        return [mine]


class AllReduce(Sum):
    def reference(self, product):
        return self.job.all_reduce(product)

    def mkernel(self):
        return [torch.ops.mkernel.fused_matmul_all_reduce(self.a, self.bs[0], "sum", self.job.group)]

    def symm_mem(self):
        return {"symm_mem": lambda: [two_shot(self.job, self.a, self.bs[0])],
                "symm_mem_one_shot": lambda: [one_shot(self.job, self.a, self.bs[0])]}

    def nccl(self):
        product = torch.mm(self.a, self.bs[0])
        dist.all_reduce(product)
        return [product]


OPERATIONS = {"ag_gemm": Gather, "gemm_rs": Scatter, "gemm_ar": AllReduce}


def two_shot(job, a, b):
    """The product by cuBLAS into PyTorch's symmetric memory, and the sum of all ranks' in its place."""
    product = job.symmetric(a.shape[0] * b.shape[1])
    torch.mm(a, b, out=product.view(a.shape[0], b.shape[1]))
    return torch.ops.symm_mem.two_shot_all_reduce_(product, "sum", job.group).view(a.shape[0], b.shape[1])


def one_shot(job, a, b):
    """The same, with the sum in new memory."""
    product = job.symmetric(a.shape[0] * b.shape[1])
    torch.mm(a, b, out=product.view(a.shape[0], b.shape[1]))
    return torch.ops.symm_mem.one_shot_all_reduce(product, "sum", job.group).view(a.shape[0], b.shape[1])


def _worst(c, wanted, terms, factor, floor):
    if c.shape != wanted.shape:
        raise AssertionError(f"the result has shape {tuple(c.shape)}, wanted is {tuple(wanted.shape)}")
    largest = c.new_zeros((), dtype=torch.float32)
    for some in range(0, c.shape[0], 2048):  # rows at a time: in fp32 all of them would need much memory
        part = slice(some, some + 2048)
        limit = terms[part].float().abs_().mul_(factor).add_(floor)
        largest = torch.maximum(largest, (c[part].float() - wanted[part].float()).abs_().div_(limit).max())
    return largest


def run(job):
    hows = ("eager", "graph") if job.cuda else ("eager",)
    models, ms = ((SMALL,), (64, 256)) if job.small else ((LLAMA_70B, LLAMA_405B), [2**bits for bits in range(6, 15)])
    cases = [(model, layer) for model in models for layer in layers(model, job.world) if layer[1] in job.settings["operators"]]
    with torch.no_grad():
        for m in job.settings["rows"] or ms:  # small ones first: they take little time
            job.begin_mkernel()
            for model, (layer, op, k, ns) in cases:
                if not job.enough_time():
                    job.row(what={"m": m, "model": model.name, "layer": layer}, left_out="there was no time for this and larger m")
                    return
                what = {"model": model.name, "layer": layer, "op": op, "m": m, "n": list(ns), "k": k, "dtype": "bf16"}
                contest.run(job, OPERATIONS[op](job, m, k, ns), what, hows, 5 if job.small else 20)
                job.free()
