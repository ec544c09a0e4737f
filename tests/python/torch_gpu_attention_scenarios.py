"""The attention operators of mkernel.torch on CUDA tensors."""
import contextlib
import warnings

from rank import raises
from torch_attention_rank import Whole, places
from torch_attention_varlen_scenarios import Sequences, attended
from torch_gpu_rank import GPU, begin, call, meet, no_launches, on_gpu
from torch_rank import RANK, WORLD, counted, end, operand, torch

import mkernel.torch

OPS = torch.ops.mkernel
OF_LSE = "the loss depends on lse"  # why PyTorch runs a backward pass
SPLIT = {False: "contiguous", True: "zigzag"}


def ring(whole, name, **keywords):
    """Forward and backward pass of this rank, checked. Returns what the call changed in the counters."""
    sequence = whole.out.shape[1]
    split = SPLIT[whole.causal and keywords.get("zigzag", True)]
    rows, leaves = places(sequence, split), whole.mine(split, GPU)
    if sequence % WORLD:
        keywords["sequence"] = sequence
    found = []
    changed = counted(lambda: found.append(call(OPS.ring_attention, *leaves, whole.causal, whole.scale, name, **keywords)))
    whole.check(found[0][0].cpu(), found[0][1].cpu(), rows, parts_rounded=True)
    rehearse(whole, found[0], leaves, name)
    whole.backward(*found[0], rows)
    mkernel.torch.synchronize()
    whole.check_gradients(leaves, rows, 3)
    return changed


def rehearse(whole, found, leaves, name):
    """The backward pass of ring attention without its launch, as call() does of what it calls."""
    if whole.with_lse:
        return  # PyTorch runs it
    q, k, v = (x.detach() for x in leaves)
    sequence = whole.out.shape[1] if whole.out.shape[1] % WORLD else 0
    with no_launches():
        OPS.ring_attention_backward(torch.ones_like(q), None, q, k, v, *(x.detach() for x in found), whole.causal, whole.scale, name,
                                    sequence=sequence)
    meet()


def values():
    """Ring attention on the cuda executor, with its gradients; the same bits from every call."""
    name = begin()
    seed = 0
    for causal in (False, True):
        for dim in (64, 128):
            for dtype in (torch.bfloat16, torch.float16):
                for heads in ((4, 4), (4, 1)):
                    whole = Whole(seed := seed + 10, 96 * WORLD, causal=causal, heads=heads, dim=dim, dtype=dtype, with_lse=dim == 64)
                    changed = ring(whole, name)
                    assert changed["launches"] == 2 and changed["plans_created"] == 1, changed
        for sequence in (1, 2 * WORLD - 1, 1003):
            ring(Whole(seed := seed + 10, sequence, causal=causal, dim=64, with_lse=False), name)
    mkernel.torch.reset_counters()
    q, k, v = (x.detach() for x in Whole(7, 300 * WORLD, causal=True, dim=64).mine("zigzag", GPU))
    results = [call(OPS.ring_attention, q, k, v, True, None, name) for _ in range(3)]
    assert all(torch.equal(a, b) for result in results[1:] for a, b in zip(result, results[0])), "other bits"
    saved = (torch.ones_like(q), None, q, k, v, *results[0], True, None, name)
    passes = [call(OPS.ring_attention_backward, *saved) for _ in range(3)]
    assert all(torch.equal(a, b) for others in passes[1:] for a, b in zip(others, passes[0])), "other bits of gradients"
    assert not mkernel.torch.counters()["fallbacks"]
    end()


def alone():
    """attention of each rank alone, with shapes of its own. The backward pass is mkernel's where the loss depends on the result alone,
    and gives the same bits every time."""
    begin()
    calls = {False: 0, True: 0}
    for causal in (False, True):
        for number, (queries, keys) in enumerate(((130 + RANK, 130 + RANK), (5, 300), (300, 5), (1, 17))):
            for with_lse in (False, True):
                dtype = (torch.bfloat16, torch.float16)[number % 2]
                whole = Whole(10 * number, queries, keys, causal=causal, rank=RANK, dim=(64, 128)[number // 2], dtype=dtype,
                              with_lse=with_lse)
                leaves = [x.to(GPU).requires_grad_() for x in whole.given]
                out, lse = call(OPS.attention, *leaves, causal)
                whole.check(out.cpu(), lse.cpu(), parts_rounded=True)
                whole.backward(out, lse)
                mkernel.torch.synchronize()
                whole.check_gradients(leaves, roundings=3)
                calls[with_lse] += 1
    told = mkernel.torch.counters()
    assert told["fallbacks"] == {f"attention_backward: {OF_LSE}": calls[True]}, told
    assert told["attention_backward"] == 2 * calls[True] and told["launches"] == told["attention"] + calls[False], told
    whole = Whole(9, 700, causal=True, heads=(4, 1), dim=128, rank=RANK, with_lse=False)
    q, k, v, d_out = (x.to(GPU) for x in (*whole.given, whole.d_out))
    out, lse = OPS.attention(q, k, v, True)
    passes = [OPS.attention_backward(d_out, None, q, k, v, out, lse, True, None) for _ in range(4)]
    mkernel.torch.synchronize()
    assert all(torch.equal(a, b) for others in passes[1:] for a, b in zip(others, passes[0])), "other bits"
    for window, causal in (((40, -1), True), ((100, 30), False), ((0, 0), False)):
        for queries, keys in ((300, 300), (70, 260)):
            whole = Whole(20, queries, keys, causal=causal, rank=RANK, dim=64, with_lse=False, window=window)
            leaves = [x.to(GPU).requires_grad_() for x in whole.given]
            out, lse = call(OPS.attention, *leaves, causal, None, *window)
            whole.check(out.cpu(), lse.cpu(), parts_rounded=True)
            whole.backward(out, lse)
            mkernel.torch.synchronize()
            whole.check_gradients(leaves, roundings=3)
    end()


def varlen():
    """Ring attention over sequences of different lengths, with its gradients; bad lengths are refused on the GPU."""
    name = begin()
    for seed, (causal, zigzag) in enumerate(((True, True), (True, False), (False, True))):
        for dim, dtype in ((64, torch.bfloat16), (128, torch.float16)):
            split = SPLIT[causal and zigzag]
            for with_lse in (False, True):
                sequences = Sequences(100 * seed + dim, (96, 0, 2, 230), split, 5, causal=causal, dim=dim, dtype=dtype, with_lse=with_lse)
                changed = attended(sequences, zigzag, name, causal, device=GPU, call=call)
                assert changed["launches"] == 2, changed  # one of them the rehearsal
    mkernel.torch.synchronize()
    assert set(mkernel.torch.counters()["fallbacks"]) == {"ring_attention_varlen_backward: the loss depends on lse"}
    q = on_gpu(1, RANK, (66, 4, 64))  # the operation has 80 rows
    for zigzag in (True, False):  # one launch over all ranks, and the composition
        for bad in ([0, 40, 32, 64], [0, 32, 68], *([[0, 33, 66]] if zigzag else [])):
            with raises(mkernel.InvalidArgument, "cu_seqlens_"):
                call(OPS.ring_attention_varlen, q, q, q, torch.tensor(bad, dtype=torch.int32, device=GPU), True, None, name, zigzag=zigzag)
            meet()
        call(OPS.ring_attention_varlen, q, q, q, torch.tensor([0, 64], dtype=torch.int32, device=GPU), True, None, name, zigzag=zigzag)
    end()


def fallbacks():
    """PyTorch's own attention on the GPU, by what it is refused for."""
    name = begin()
    contiguous = "causal over contiguous parts"
    for keywords, options, reason in (
        ({"causal": True}, {"zigzag": False}, contiguous),
        ({"causal": True, "dim": 80}, {}, "head_dim is not 64 or 128"),
        ({"causal": False, "dim": 20}, {}, "head_dim is not 64 or 128"),
        ({"causal": True, "dtype": torch.float32}, {}, "dtype torch.float32"),
        ({"causal": False, "dtype": torch.float64}, {}, "dtype torch.float64"),
    ):
        for sequence in (40 * WORLD, 40 * WORLD + 3):
            mkernel.torch.reset_counters()
            ring(Whole(3, sequence, **{"dim": 64, **keywords}), name, **options)
            told = mkernel.torch.counters()
            wanted = {f"ring_attention: {reason}": 2, f"ring_attention_backward: {OF_LSE}": 1}
            assert told["fallbacks"] == wanted and "launches" not in told, (reason, told)
    end()


def two_nodes():
    """Ring attention over two nodes, with its gradients."""
    name = begin()
    for causal in (False, True):
        changed = ring(Whole(1 + causal, 96 * WORLD, causal=causal, dim=64, with_lse=False), name)
        assert changed["launches"] == 2, changed  # one of them the rehearsal
    told = mkernel.torch.counters()
    assert told["ring_attention_backward"] == 4 and not told["fallbacks"], told
    end()


def graphs():
    """Captured once, replayed with other inputs."""
    name = begin()
    q, k, v = (torch.empty(2, 64, heads, 64, dtype=torch.bfloat16, device=GPU) for heads in (4, 2, 2))
    rows = places(64 * WORLD, "zigzag")

    def fill(seed):
        whole = Whole(seed, 64 * WORLD, causal=True, dim=64)
        for x, given in zip((q, k, v), whole.given):
            x.copy_(given[:, rows])
        return whole

    d_out = on_gpu(3, RANK, q.shape)

    def layer():
        out, lse = OPS.attention(q, k, v)
        return (*OPS.ring_attention(q, k, v, True, None, name), out, *OPS.attention_backward(d_out, None, q, k, v, out, lse, False, None))

    fill(0)
    for op, words in ((lambda: OPS.ring_attention(q, k, v, True, None, name), "ring_attention"), (lambda: OPS.attention(q, k, v), "attention")):
        with raises(mkernel.FailedPrecondition, words, "before the capture"):
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                op()
    with torch.no_grad():
        call(layer)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = layer()
    for seed in range(10, 30):
        whole = fill(seed)
        meet()
        graph.replay()
        mkernel.torch.synchronize()
        whole.check(results[0].cpu(), results[1].cpu(), rows, parts_rounded=True)
        leaves = [x.cpu().double().transpose(1, 2).requires_grad_() for x in (q, k, v)]
        own = torch.nn.functional.scaled_dot_product_attention(*leaves, enable_gqa=True)
        wanted = (own.detach(), *torch.autograd.grad(own, leaves, d_out.cpu().double().transpose(1, 2)))
        for ours, theirs, bound in zip(results[2:], wanted, (0.01, 0.05, 0.05, 0.05)):
            assert torch.allclose(ours.cpu().double(), theirs.transpose(1, 2), rtol=bound, atol=bound)
    end()


def compiled():
    """opcheck, and torch.compile with Inductor, forward and backward."""
    warnings.simplefilter("ignore")
    name = begin()
    q, k, v = (x.detach() for x in Whole(1, 64 * WORLD, causal=True, dim=64).mine("zigzag", GPU))
    results = call(OPS.attention, q, k, v, True)
    for op, arguments in ((OPS.attention, (q, k, v, True)), (OPS.ring_attention, (q, k, v, True, None, name)),
                          (OPS.attention_backward, (torch.ones_like(q), None, q, k, v, *results, True, None))):
        call(op, *arguments)
        with no_launches(), contextlib.suppress(Exception):  # it compares results, which there are none of
            torch.library.opcheck(op.default, arguments)
        meet()
        results = torch.library.opcheck(op.default, arguments)
        assert set(results.values()) == {"SUCCESS"}, (op, results)

    def block(x, weight):
        q, k, v = (x @ weight).unflatten(-1, (3, 2, 64)).unbind(2)
        return torch.relu(OPS.ring_attention(q, k, v, True, None, name)[0]).flatten(2) * 2

    def gradients_of(function):
        leaves = [operand(4, RANK, (2, 64, 64)).to(GPU).requires_grad_(), (0.1 * operand(5, 0, (64, 384))).to(GPU).requires_grad_()]
        out = function(*leaves)
        (out * operand(7, RANK, out.shape).to(GPU)).sum().backward()
        return [out.detach(), *(leaf.grad for leaf in leaves)]

    wanted = call(gradients_of, block)
    got = call(gradients_of, torch.compile(block, fullgraph=True))
    for ours, theirs in zip(got, wanted):
        assert torch.allclose(ours.float(), theirs.float(), rtol=0.05, atol=0.05 * theirs.float().abs().max().item())
    end()


def context_parallel():
    """PyTorch's context_parallel() as a whole, on mkernel: results and gradients of its scaled_dot_product_attention."""
    import torch.nn.functional as F
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel as parallel
    from torch.nn.attention import SDPBackend, sdpa_kernel

    begin()
    mkernel.torch.patch_context_parallel()
    whole = Whole(1, 64 * WORLD, causal=True, heads=(4, 4), dim=64, with_lse=False)
    rows = places(64 * WORLD, "zigzag")
    mesh = init_device_mesh("cuda", (WORLD,))
    d_out = whole.d_out[:, rows].transpose(1, 2).to(GPU)

    def attended():
        mine = [x.transpose(1, 2).contiguous().to(GPU) for x in whole.given]
        with parallel(mesh, buffers=mine, buffer_seq_dims=[2] * 3, no_restore_buffers=set(mine)), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            for x in mine:  # this rank's parts by now
                x.requires_grad_()
            out = F.scaled_dot_product_attention(*mine, is_causal=True)
            out.backward(d_out)
        return out.detach(), [x.grad for x in mine]

    out, gradients = call(attended)
    whole.check(out.transpose(1, 2).contiguous().cpu(), whole.lse[..., rows].float(), rows, parts_rounded=True)
    for gradient, wanted in zip(gradients, whole.gradients):
        assert torch.allclose(gradient.cpu().transpose(1, 2).double(), wanted[:, rows], rtol=0.05, atol=0.05)
    told = mkernel.torch.counters()
    assert told["launches"] == 4 and not told["fallbacks"], told
    mkernel.torch.unpatch_context_parallel()
    end()
