"""The MoE operators of mkernel.torch on CUDA tensors."""
import contextlib
import warnings

from rank import raises
from torch_gpu_rank import GPU, begin, call, meet, no_launches
from torch_moe_rank import Layer, close, gemm, moe
from torch_rank import RANK, WORLD, dist, end, torch

import mkernel.torch

OPS = torch.ops.mkernel
SIZES, LARGER = (64, 40, 24), (256, 192, 136)  # hidden, n, intermediate
MOST = 144  # tokens of a rank


def tokens_of(rank, number):
    """On some ranks none, and at the call of number 4 none at all."""
    return 0 if number == 4 or (rank + number) % 3 == 2 else (53 * rank + 31 * number) % (MOST - 1) + 1


def stored(layer):
    """Gates, ups and the second product's weights of this rank's experts, as views of what torch keeps."""
    return [layer.part(w, True) for w in (layer.gate, layer.up, layer.down)]


def values():
    """Both types, weights of both layouts, other numbers of tokens on every rank, skewed routing; few experts; copies."""
    name = begin()
    for dtype in (torch.bfloat16, torch.float16):
        for sizes in (SIZES, LARGER):
            layer = Layer(dtype=dtype, sizes=sizes, device=GPU)
            for number in range(5):
                x, ids, weights = inputs = layer.inputs(number, tokens_of(RANK, number), skewed=number % 2 == 1)
                one, two = (layer.wanted(*inputs, with_second) for with_second in (False, True))
                for transposed in (False, True):
                    y = call(gemm, layer, inputs, name, transposed, max_tokens=MOST)
                    assert y.dtype == dtype and y.device == GPU and y.is_contiguous()
                    close(y, one)
                    for halves in (False, True):
                        wide = (x, ids.long(), weights.double())
                        y = call(moe, layer, wide, name, transposed, halves, max_tokens=MOST)
                        close(y, two)
                        assert torch.equal(y, call(moe, layer, wide, name, transposed, halves, max_tokens=MOST)), "other bits"
                y = call(moe, layer, inputs, name, max_tokens=MOST, weights_on_input=True)
                close(y, layer.wanted(*inputs, True, on_input=True))
                for halves in (False, True):
                    factors = weights.sum(1) if halves else None
                    y = call(moe, layer, inputs, name, halves, halves, max_tokens=MOST, **layer.shared(halves, halves, factors))
                    wanted = weights.new_ones(x.shape[0]) if factors is None else factors
                    close(y, layer.wanted(*inputs, True, shared=wanted))
    # Without max_tokens every rank has the same number of tokens. As many experts as ranks, and fewer.
    for experts in (WORLD, 1):
        few = Layer(experts=experts, topk=1, sizes=SIZES, device=GPU)
        for tokens in (1, 0, 70):
            inputs = few.inputs(7, tokens)
            close(call(gemm, few, inputs, name, experts > 1), few.wanted(*inputs, False))
            close(call(moe, few, inputs, name, False, True), few.wanted(*inputs, True))
    # What does not begin at a multiple of 16 bytes is copied.
    layer = Layer(sizes=SIZES, device=GPU)
    x, ids, weights = layer.inputs(9, 12)
    odd = torch.empty(x.numel() + 4, dtype=x.dtype, device=GPU)[4:].view_as(x).copy_(x)
    mkernel.torch.reset_counters()
    close(call(gemm, layer, (odd, ids, weights), name), layer.wanted(x, ids, weights, False))
    assert [what for what in mkernel.torch.counters()["copies"] if what.startswith("x: it does not begin at a multiple of 16")]
    # Tensors in host memory go to the cpu executor of the same group.
    on_host = Layer(sizes=SIZES)
    inputs = on_host.inputs(9, 12)
    close(gemm(on_host, inputs, name), on_host.wanted(*inputs, False))
    end()


def graphs():
    """Captured once, replayed with other tokens and other routing. A replay that every rank refuses writes nothing."""
    name, layer, tokens = begin(), Layer(sizes=LARGER, device=GPU), 40 + 30 * RANK
    x, ids, weights = layer.inputs(1, tokens)
    ids = ids.long()  # the copy to int32 is captured, too
    parts = stored(layer)

    def step():
        return OPS.moe_layer(x, ids, weights, *parts, layer.experts, name, max_tokens=MOST)

    with raises(mkernel.FailedPrecondition, "moe_dispatch_gemm", "before the capture"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            step()
    call(step)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = step()

    def replay(number):
        inputs = layer.inputs(number, tokens, skewed=number % 2 == 1)
        for kept, new in zip((x, ids, weights), inputs):
            kept.copy_(new)
        meet()
        graph.replay()
        mkernel.torch.synchronize()
        close(y, layer.wanted(*inputs, True))

    for number in range(10, 30):
        replay(number)
    before, good = y.clone(), ids[3, 1].clone()
    if RANK == 1:
        ids[3, 1] = layer.experts
    meet()
    graph.replay()
    with raises(mkernel.InvalidArgument, f"rank 1: topk[3, 1] = {layer.experts}"):
        mkernel.torch.synchronize()
    assert torch.equal(y, before)
    ids[3, 1] = good
    mkernel.torch.synchronize()  # it is told once
    replay(30)
    end()


def refused():
    """What one rank gives wrong, or more rows than the capacity: told on every rank once the GPU has seen it, and the group goes on."""
    name, layer = begin(), Layer(sizes=SIZES, device=GPU)
    x, ids, weights = layer.inputs(1, 5)

    def spoiled(tensor, value):
        tensor = tensor.clone()
        if RANK == 1:
            tensor[4, 1] = value
        return tensor

    def good():
        inputs = layer.inputs(2, tokens_of(RANK, 1), skewed=True)
        close(call(moe, layer, inputs, name, True, True, max_tokens=MOST), layer.wanted(*inputs, True))

    good()
    twice = ids.clone()
    twice[:, 1] = twice[:, 0]
    many = ids.long()
    invalid = mkernel.InvalidArgument
    for given, words in (((x, spoiled(ids, 10), weights), f"rank 1: topk[4, 1] = 10, but it must be 0..{layer.experts - 1}"),
                         ((x, spoiled(ids, -1), weights), "rank 1: topk[4, 1] = -1"),
                         ((x, spoiled(many, 2 ** 32 + 1), weights), "rank 1: topk[4, 1] ="),
                         ((x, twice, weights), "rank 0: topk[0, "),
                         ((x, ids, spoiled(weights, float("nan"))), "rank 1: weights[4, 1]")):
        with raises(invalid, words):  # call() ends with synchronize()
            call(moe, layer, given, name, True, True, max_tokens=MOST)
        mkernel.torch.synchronize()
        good()
        with mkernel.torch.options(check=True), raises(invalid, words):
            moe(layer, given, name, True, True, max_tokens=MOST)
    # Several at once: the last of an operation is told.
    moe(layer, (x, spoiled(ids, 11), weights), name, True, True, max_tokens=MOST)
    moe(layer, (x, spoiled(ids, 12), weights), name, True, True, max_tokens=MOST)
    with raises(invalid, "rank 1: topk[4, 1] = 12"):
        mkernel.torch.synchronize()
    good()
    # The rows of each expert count as 64: a rank has room for two experts. Experts 0, 1 and 2 are of one rank.
    crowded = torch.tensor([0, 1, 2], dtype=torch.int32, device=GPU).repeat(5, 1)
    with raises(mkernel.ResourceExhausted, "rank 0 needs 192", "its capacity is 128"):
        call(gemm, layer, (x, crowded, weights), name, capacity=128)
    spread = torch.tensor([0, 2, 5], dtype=torch.int32, device=GPU).repeat(5, 1)
    close(call(gemm, layer, (x, spread, weights), name, capacity=128), layer.wanted(x, spread, weights, False))
    end()


def wrong():
    """What the cuda executor does not take is refused by name, on every rank before it waits for another; the group goes on."""
    name, layer = begin(), Layer(sizes=SIZES, device=GPU)
    x, ids, weights = inputs = layer.inputs(1, 4)
    w = layer.part(layer.w)

    def one(x=x, ids=ids, weights=weights, w=w, experts=layer.experts):
        return OPS.moe_dispatch_gemm(x, ids, weights, w, experts, name)

    many = torch.zeros(1025 // WORLD + RANK * (1025 % WORLD), 64, 40, dtype=torch.bfloat16, device=GPU)
    wide = Layer(experts=20, topk=17, sizes=SIZES, device=GPU)
    refused, invalid = mkernel.torch.Refused, mkernel.InvalidArgument
    for broken, kind, words in (
        (lambda: one(x[:, :60], w=w[:, :60]), refused, ["hidden = 60", "multiples of 8"]),
        (lambda: one(w=w[:, :, :36]), refused, ["n = 36"]),
        (lambda: OPS.moe_layer(*inputs, *(part[:, :, :20] for part in stored(layer)[:2]), stored(layer)[2][:, :20], layer.experts, name),
         refused, ["intermediate = 20"]),
        (lambda: gemm(wide, wide.inputs(1, 4), name), refused, ["topk = 17", "at most 16"]),
        (lambda: one(w=many, experts=1025), refused, ["num_experts = 1025", "at most 1024"]),
        (lambda: one(x.float()), refused, ["torch.float32"]),
        (lambda: one(w=w.half()), invalid, ["w has dtype torch.float16"]),
        (lambda: one(w=w.cpu()), invalid, ["w is on cpu", f"x on {x.device}"]),
        (lambda: one(ids=ids.cpu()), invalid, ["topk_ids is on cpu"]),
        (lambda: one(w=w.clone().requires_grad_()), mkernel.Unimplemented, ["w requires a gradient"]),
    ):
        with raises(kind, *words):
            broken()
    with mkernel.torch.options(sm_margin=1000):
        with raises(invalid, "sms"):
            one()
    told = mkernel.torch.explain(OPS.moe_dispatch_gemm, *inputs, w, layer.experts, name)
    assert told.path == "mkernel" and "cuda" in told.operation and told.copies == () and not told.planned, told
    close(call(one), layer.wanted(*inputs, False))
    assert mkernel.torch.explain(OPS.moe_dispatch_gemm, *inputs, w, layer.experts, name).planned
    end()


def compiled():
    """opcheck, and torch.compile without a graph break."""
    warnings.simplefilter("ignore")
    name, layer = begin(), Layer(sizes=SIZES, device=GPU)
    inputs, parts = layer.inputs(1, 5), stored(layer)
    for op, arguments in ((OPS.moe_dispatch_gemm, (*inputs, layer.part(layer.w), layer.experts, name)),
                          (OPS.moe_layer, (*inputs, *parts, layer.experts, name))):
        call(op, *arguments, max_tokens=MOST)
        with no_launches(), contextlib.suppress(Exception):  # it compares results, which there are none of
            torch.library.opcheck(op.default, arguments, {"max_tokens": MOST})
        meet()
        results = torch.library.opcheck(op.default, arguments, {"max_tokens": MOST})
        assert set(results.values()) == {"SUCCESS"}, (op, results)

    def block(x, ids, weights, gate, up, down):
        h = OPS.moe_layer(x * 2, ids, weights.softmax(1), gate.transpose(1, 2), up.transpose(1, 2), down.transpose(1, 2),
                          layer.experts, name, max_tokens=MOST)
        return torch.relu(h) + h

    kept = [w.transpose(1, 2) for w in parts]
    x, ids, weights = inputs
    y = layer.wanted(x * 2, ids, weights.softmax(1), True)
    wanted = torch.relu(y) + y
    mkernel.torch.reset_counters()
    for backend in ("aot_eager", "inductor"):
        with torch._inductor.config.patch(compile_threads=1):
            close(call(torch.compile(block, backend=backend, fullgraph=True), *inputs, *kept), wanted)
    assert mkernel.torch.counters()["copies"] == {}  # torch.compile hands the weights on as they lie
    end()


def liger():
    """Liger-Kernel's layer: weights as torch keeps them, any leading dimensions, ranks without tokens."""
    begin()
    layer = Layer(sizes=(64, 64, 24), device=GPU)
    weights_of = [w.transpose(1, 2) for w in stored(layer)]
    assert all(w.is_contiguous() for w in weights_of)
    moe_of = mkernel.torch.LigerExpertParallelFusedMoe(dist.group.WORLD, max_tokens=MOST)
    mkernel.torch.reset_counters()
    for number in range(5):
        inputs = layer.inputs(number, tokens_of(RANK, number), skewed=number % 2 == 1)
        close(call(moe_of, *inputs, *weights_of, layer.experts), layer.wanted(*inputs, True))
    assert mkernel.torch.counters()["copies"] == {}
    x, ids, weights = layer.inputs(9, 6)
    folded = [tensor.view(2, 3, -1) for tensor in (x, ids.long(), weights.bfloat16())]
    y = call(mkernel.torch.LigerExpertParallelFusedMoe(), *folded, *weights_of, layer.experts)
    assert y.shape == (2, 3, 64)
    close(y.view(6, 64), layer.wanted(x, ids, weights.bfloat16(), True))
    end()


def mega():
    """DeepGEMM's functions: the caller fills a buffer, tokens differ from rank to rank and from call to call; also in a graph."""
    begin()
    layer = Layer(experts=130, topk=4, sizes=(64, 64, 24), device=GPU)  # counts of so many experts take two exchanges
    l1 = torch.cat([layer.part(layer.gate), layer.part(layer.up)], 2).transpose(1, 2).contiguous()
    l2 = layer.part(layer.down).transpose(1, 2).contiguous()
    buffer = mkernel.torch.get_symm_buffer_for_mega_moe(dist.group.WORLD, layer.experts, MOST, layer.topk, 64, 24)
    assert buffer.x.device == GPU
    run, stats, received = mkernel.torch.bf16_mega_moe, torch.full((l1.shape[0],), 5, dtype=torch.int32, device=GPU), None

    def fill(number, tokens):
        inputs = layer.inputs(number, tokens, skewed=number % 2 == 1)
        for kept, new in zip((buffer.x, buffer.topk_idx, buffer.topk_weights), inputs):
            kept[:tokens].copy_(new)
        return inputs

    for number in range(5):
        inputs = fill(number, tokens_of(RANK, number))
        y = torch.empty_like(inputs[0])
        if number == 0:
            with no_launches():  # loads what the call runs
                run(y, l1, l2, buffer, stats.clone())
            meet()
        run(y, l1, l2, buffer, stats)
        close(y, layer.wanted(*inputs, True))
        counts = torch.bincount(inputs[1].cpu().flatten(), minlength=layer.experts)
        dist.all_reduce(counts)
        received = counts + (5 if received is None else received)
        assert torch.equal(stats.cpu(), received[layer.mine].to(torch.int32)), number
    # An output out of line, and one that is not dense.
    inputs = fill(6, 8)
    for y in (torch.empty(8 * 64 + 4, dtype=torch.bfloat16, device=GPU)[4:].view(8, 64),
              torch.empty(8, 128, dtype=torch.bfloat16, device=GPU)[:, ::2]):
        call(run, y, l1, l2, buffer)
        close(y, layer.wanted(*inputs, True))
    y, graph = torch.empty(8, 64, dtype=torch.bfloat16, device=GPU), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(y, l1, l2, buffer)
        with raises(mkernel.Unimplemented, "cumulative_local_expert_recv_stats", "capture"):
            run(y, l1, l2, buffer, stats)
    for number in range(10, 15):
        inputs = fill(number, 8)
        meet()
        graph.replay()
        mkernel.torch.synchronize()
        close(y, layer.wanted(*inputs, True))
    # Refused by every rank: raised by the call that waits, and what was received is not counted.
    before = stats.clone()
    if RANK == 1:
        buffer.topk_idx[0, 0] = 130
    meet()
    with raises(mkernel.InvalidArgument, "rank 1: topk[0, 0] = 130"):
        run(y, l1, l2, buffer, stats)
    assert torch.equal(stats, before)
    inputs = fill(16, 8)
    call(run, y, l1, l2, buffer)
    close(y, layer.wanted(*inputs, True))
    end()


def grouped():
    """grouped_mm(): both layouts and types, replays of a graph with other ends, gradients, bad ends. No rank waits for another."""
    begin()
    rows, k, n, groups = 320, 72, 136, 5
    for dtype in (torch.bfloat16, torch.float16):
        for transposed in (False, True):
            generator = torch.Generator(GPU).manual_seed(RANK)
            a = torch.rand(rows, k, generator=generator, device=GPU).sub(0.5).to(dtype)
            b = torch.rand(groups, *((n, k) if transposed else (k, n)), generator=generator, device=GPU).sub(0.5).to(dtype)
            b = b.transpose(1, 2) if transposed else b
            offs = torch.tensor([3, 3, 150, 280, rows], dtype=torch.int32, device=GPU)

            def check(c):
                torch.cuda.synchronize()
                mkernel.torch.synchronize()
                group = torch.bucketize(torch.arange(rows, device=GPU), offs, right=True)
                wanted = torch.stack([a[i].double() @ b[g].double() for i, g in enumerate(group.tolist()) if g < groups])
                close(c[: wanted.shape[0]], wanted.cpu())

            check(mkernel.torch.grouped_mm(a, b, offs=offs))
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                c = mkernel.torch.grouped_mm(a, b, offs=offs)
            for ends in ([0, 0, 0, 0, rows], [64, 128, 192, 256, rows], [1, 2, 3, 4, 300]):
                offs.copy_(torch.tensor(ends, dtype=torch.int32))
                graph.replay()
                check(c)
    offs.copy_(torch.tensor([5, 4, 6, 7, 8], dtype=torch.int32))
    mkernel.torch.grouped_mm(a, b, offs=offs)
    with raises(mkernel.InvalidArgument, "1", "4"):
        mkernel.torch.synchronize()
    assert mkernel.torch.counters()["fallbacks"] == {}
    end()
