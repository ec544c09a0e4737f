"""Steps of a sequence-parallel transformer block that Inductor compiles: collectives as written, with PyTorch's pass for asynchronous
tensor parallelism on its own symmetric memory, and with the same pass on mkernel, behind patch_symm_mem().

The block has the matrices of a layer of Llama 3 70B with 64 heads for keys too. Its four collectives, and the four of its backward pass,
each lie beside one product, so that the pass can fuse all of them. It learns to answer its input negated, from new inputs at each step;
all three begin with the same weights and see the same inputs. Their losses are compared: bf16 keeps 8 bits, 0.4 %, and their products
round in different orders, which goes on in the weights. The tolerance is 1 % of the loss."""
import contextlib
import math

import torch
import torch.distributed._functional_collectives as funcol
import torch.distributed._symmetric_memory as symm
import torch.nn.functional as F

import mkernel.torch

HEAD = 128
STEPS, RATE, TOLERANCE = 20, 0.001, 0.01
FUSED = 8  # collectives of a step


class Variant:
    """One way to run the step, with weights of its own."""

    def __init__(self, weights, block, fused, patched):
        self.weights = [weight.clone().requires_grad_() for weight in weights]
        # Options make a compiler of its own: compiled code is not shared between the two.
        self.block = torch.compile(block, fullgraph=True, options={"_micro_pipeline_tp": fused})
        self.patched = patched
        self.ms, self.host_us, self.losses, self.launches = [], [], [], 0

    @contextlib.contextmanager
    def operators(self):
        if self.patched:
            mkernel.torch.patch_symm_mem()
        try:
            yield
        finally:
            mkernel.torch.unpatch_symm_mem()

    def step(self, x, target):
        loss = self.block(x.detach().requires_grad_(), target, *self.weights)  # as if another block came before
        loss.backward()
        with torch.no_grad():
            torch._foreach_add_(self.weights, [weight.grad for weight in self.weights], alpha=-RATE)
        for weight in self.weights:
            weight.grad = None
        return loss.detach()


class Gather(torch.autograd.Function):
    """The rows of all ranks; backward the sum of the gradients of this rank's rows."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return funcol.all_gather_tensor(x, 0, group)

    @staticmethod
    def backward(ctx, gradient):
        return funcol.reduce_scatter_tensor(gradient.contiguous(), "sum", 0, ctx.group), None


class Scatter(torch.autograd.Function):
    """This rank's rows of the sum over all ranks; backward the gradients of all rows."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return funcol.reduce_scatter_tensor(x, "sum", 0, group)

    @staticmethod
    def backward(ctx, gradient):
        return funcol.all_gather_tensor(gradient.contiguous(), 0, ctx.group), None


def make_block(group, hidden, heads):
    """The block of a rank with so many heads. It returns the sum of the squared errors of this rank's rows, for each token of it."""

    def attention(x, wqkv):
        qkv = Gather.apply(F.rms_norm(x, (hidden,)), group) @ wqkv.t()
        q, k, v = qkv.view(-1, 3, heads, HEAD).permute(1, 2, 0, 3).unsqueeze(1).unbind(0)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return attended.squeeze(0).transpose(0, 1).reshape(-1, heads * HEAD)

    def block(x, target, wqkv, wo, wgate_up, wdown):
        x = x + Scatter.apply(attention(x, wqkv) @ wo.t(), group)
        both = Gather.apply(F.rms_norm(x, (hidden,)), group) @ wgate_up.t()
        gate, up = both.chunk(2, -1)
        y = x + Scatter.apply((F.silu(gate) * up) @ wdown.t(), group)
        return (y - target).float().square().sum() / y.shape[0]

    return block


def run(job):
    hidden, ffn, heads, sequence = (512, 1024, 4, 256) if job.small else (8192, 28672, 64, 8192)
    what = {"hidden": hidden, "ffn": ffn, "heads": heads, "sequence": sequence, "steps": STEPS, "dtype": "bf16"}
    if job.share:
        job.row(what=what, left_out="what the pass does not fuse goes over the process group, and NCCL needs a GPU for each rank")
        return
    heads, ffn = heads // job.world, ffn // job.world
    # (outputs, inputs, all inputs) of q, k and v, of attention's output, of gate and up, and of down.
    shapes = ((3 * heads * HEAD, hidden, hidden), (hidden, heads * HEAD, hidden),
              (2 * ffn, hidden, hidden), (hidden, ffn, ffn * job.world))
    weights = [job.random(n, k, scale=(3 / whole) ** 0.5) for n, k, whole in shapes]
    block = make_block(job.group, hidden, heads)
    variants = {"nccl_cublas": Variant(weights, block, False, False), "symm_mem": Variant(weights, block, True, False),
                "mkernel": Variant(weights, block, True, True)}
    x = job.random(sequence // job.world, hidden)
    errors = {}
    with _passes(job):
        for name, variant in list(variants.items()):
            job.at(f"training: compiles and tries {name}")
            mkernel.torch.reset_counters()
            error = job.agree(job.attempt(lambda: _rehearse(variant, x))[1])
            if error is not None:
                errors[name] = error
                del variants[name]
        job.at("training: steps")
        mkernel.torch.reset_counters()
        _steps(job, variants, x)
    counters = mkernel.torch.counters()
    losses = {name: variant.losses for name, variant in variants.items()}
    reference = losses.get("nccl_cublas", [])
    taken = {name: {"ms": variant.ms, "host_us": variant.host_us, "worst": _worst(variant.losses, reference)}
             for name, variant in variants.items()}
    launches = variants["mkernel"].launches // STEPS if "mkernel" in variants else 0
    job.row(what=what, how="compiled", contenders=taken, errors=errors, losses=losses, launches_of_a_step=launches,
            fell_back=bool(counters["fallbacks"]) or launches < FUSED,
            counters={key: counters.get(key, 0) for key in ("launches", "padded", "copies", "fallbacks")})


def _worst(losses, reference):
    """The largest difference over its tolerance. Without a reference nothing is verified, and what is not a number is wrong."""
    errors = [abs(a - b) / (TOLERANCE * b) for a, b in zip(losses, reference)]
    return max(errors) if errors and all(map(math.isfinite, errors)) else math.inf


def _passes(job):
    """PyTorch runs the pass where it finds symmetric memory; in host memory its own test mode says that there is."""
    return contextlib.nullcontext() if job.cuda else symm._test_mode()


def _rehearse(variant, x):
    """Compiles forward and backward, and makes the operations. The weights stay what they were."""
    kept = [weight.detach().clone() for weight in variant.weights]
    # A rank that has compiled waits in its first call for those that still do.
    with variant.operators(), mkernel.torch.options(timeout=60.0):
        for _ in range(2):
            variant.step(x, -x)
    with torch.no_grad():
        for weight, before in zip(variant.weights, kept):
            weight.copy_(before)


def _steps(job, variants, x):
    names = list(variants)
    for number in range(STEPS):
        x.uniform_(-1, 1)
        target = -x
        job.synchronize()
        first = number % len(names)
        for name in names[first:] + names[:first]:
            variant = variants[name]
            before = mkernel.torch.counters().get("launches", 0)
            with variant.operators():
                loss, (begin, end), host_us = job.timed(lambda: variant.step(x, target))
                job.synchronize()
                mkernel.torch.synchronize()
            variant.launches += mkernel.torch.counters().get("launches", 0) - before
            if variant.launches and not variant.patched:
                raise RuntimeError(f"{name} has launched operations of mkernel: unpatch_symm_mem() had no effect")
            variant.ms.append(begin.elapsed_time(end))
            variant.host_us.append(host_us)
            variant.losses.append(sum(job.exchange(float(loss))) / job.world)
