"""One token for each sequence of a batch through some layers of Llama 3 70B, replayed from a CUDA graph: the loop of a server.

A layer is norm, q, k and v, attention over a cache, its output's all-reduce, norm, the gated products, and their all-reduce. The
contenders differ in how a product is summed over the ranks; `product` leaves the sum out. Results are compared with those of NCCL and
cuBLAS as a whole: what roundings of bf16 do grows from layer to layer, and is about 1 % of the results' norm after four, while a
product of one rank that is missing changes tens of percent. The tolerance is 3 %."""
import torch
import torch.distributed as dist
import torch.nn.functional as F

import contest
import operators
from job import NEEDS_GPUS

HEAD = operators.HEAD
TOLERANCE = 0.03


class Weights:
    """Of one layer, this rank's part, scaled such that activations keep their size."""

    def __init__(self, job, model):
        heads, self.kv = model.heads // job.world, max(model.kv_heads // job.world, 1)
        self.heads, ffn = heads, model.ffn // job.world

        def weight(outputs, inputs, whole):
            return job.random(outputs, inputs, scale=(3 / whole) ** 0.5).t()

        self.qkv = weight((heads + 2 * self.kv) * HEAD, model.hidden, model.hidden)
        self.out = weight(model.hidden, heads * HEAD, model.hidden)
        self.gate_up = weight(2 * ffn, model.hidden, model.hidden)
        self.down = weight(model.hidden, ffn, model.ffn)


class Decode(contest.Case):
    def __init__(self, job, model, batch, weights, tokens):
        self.job, self.model, self.weights = job, model, weights
        kv = weights[0].kv
        self.caches = [(job.random(batch, kv, tokens, HEAD), job.random(batch, kv, tokens, HEAD)) for _ in weights]
        self.x = torch.empty(batch, model.hidden, dtype=torch.bfloat16, device=job.device)
        self.fresh = torch.empty_like(self.x)
        self.generator = torch.Generator(device=job.device).manual_seed(7)  # the same on all ranks: x is replicated

        def nccl(a, b):
            product = torch.mm(a, b)
            dist.all_reduce(product)
            return product

        ways = {"mkernel": lambda a, b: torch.ops.mkernel.fused_matmul_all_reduce(a, b, "sum", job.group),
                "symm_mem": lambda a, b: operators.two_shot(job, a, b),
                "symm_mem_one_shot": lambda a, b: operators.one_shot(job, a, b), "nccl_cublas": nccl, "product": torch.mm}
        self.contenders = {name: lambda way=way: [self._step(self.x, way)] for name, way in ways.items()}
        if not job.nccl:
            self.contenders["nccl_cublas"] = NEEDS_GPUS

    def renew(self):
        self.fresh.uniform_(-1, 1, generator=self.generator)
        self.wanted = self._step(self.fresh, lambda a, b: self.job.all_reduce(torch.mm(a, b))).float()

    def refresh(self):
        self.x.copy_(self.fresh)

    def worst(self, results):
        return (results[0].float() - self.wanted).norm() / (TOLERANCE * self.wanted.norm())

    def _step(self, x, reduce):
        for weights, cache in zip(self.weights, self.caches):
            x = self._layer(x, weights, cache, reduce)
        return x

    def _layer(self, x, w, cache, reduce):
        batch, size = x.shape[0], (self.model.hidden,)
        q, k, v = torch.mm(F.rms_norm(x, size), w.qkv).split([w.heads * HEAD, w.kv * HEAD, w.kv * HEAD], dim=1)
        for kept, new in zip(cache, (k, v)):
            kept[:, :, -1] = new.view(batch, w.kv, HEAD)
        # The heads that share keys are rows of one product.
        attended = F.scaled_dot_product_attention(q.reshape(batch, w.kv, w.heads // w.kv, HEAD), *cache)
        x = x + reduce(attended.reshape(batch, w.heads * HEAD), w.out)
        gate, up = torch.mm(F.rms_norm(x, size), w.gate_up).chunk(2, dim=1)
        return x + reduce(F.silu(gate) * up, w.down)


def run(job):
    model, count, tokens = (operators.SMALL, 2, 64) if job.small else (operators.LLAMA_70B, 4, 1024)
    with torch.no_grad():
        weights = [Weights(job, model) for _ in range(count)]  # together larger than the cache: every layer reads memory
        for batch in (1, 4) if job.small else (1, 2, 4, 8, 16, 32, 64):
            job.begin_mkernel()
            what = {"model": model.name, "layers": count, "batch": batch, "cache_tokens": tokens, "dtype": "bf16"}
            if not job.enough_time():
                job.row(what=what, left_out="there was no time for this and larger batches")
                return
            hows = ("graph",) if job.cuda else ("eager",)
            contest.run(job, Decode(job, model, batch, weights, tokens), what, hows, 5 if job.small else 30)
            job.free()
