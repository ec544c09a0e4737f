"""The MoE operators on ranks of their own: every element against fp64 of plain torch, layouts, torch.compile, wrong input."""
import unittest.mock
import warnings

from rank import raises
from torch_moe_rank import MOST, Layer, close, gemm, moe, tokens_of
from torch_rank import RANK, WORLD, counted, end, start, torch

import mkernel.torch

OPS = torch.ops.mkernel


def values():
    name = start()
    for dtype in (torch.bfloat16, torch.float16):
        layer = Layer(dtype=dtype)
        for call in range(5):
            tokens = tokens_of(RANK, call)
            x, ids, weights = inputs = layer.inputs(call, tokens, skewed=call % 2 == 1)
            for transposed in (False, True):
                y = gemm(layer, inputs, name, transposed, max_tokens=MOST)
                assert y.dtype == dtype and y.is_contiguous()
                close(y, layer.wanted(*inputs, False))
                for halves in (False, True):
                    wide = (x, ids.long(), weights.double())
                    close(moe(layer, wide, name, transposed, halves, max_tokens=MOST), layer.wanted(*inputs, True))
            y = moe(layer, inputs, name, max_tokens=MOST, weights_on_input=True)
            close(y, layer.wanted(*inputs, True, on_input=True))
            factors = weights.sum(1)
            for transposed in (False, True):
                for halves in (False, True):
                    given = None if halves else factors.to(dtype)
                    y = moe(layer, inputs, name, transposed, halves, max_tokens=MOST, **layer.shared(transposed, halves, given))
                    close(y, layer.wanted(*inputs, True, shared=torch.ones(tokens) if halves else given))
    # Without max_tokens every rank has the same number of tokens; fewer experts than ranks; all to one expert.
    few = Layer(experts=2, topk=1)
    for tokens in (4, 1, 0, 9):
        x, ids, weights = few.inputs(7, tokens)
        for given in (ids, torch.ones_like(ids)):
            for transposed in (False, True):
                close(moe(few, (x, given, weights), name, transposed, True), few.wanted(x, given, weights, True))
                close(gemm(few, (x, given, weights), name, transposed), few.wanted(x, given, weights, False))
    with torch.inference_mode():
        inputs = few.inputs(8, 4)
        close(gemm(few, inputs, name), few.wanted(*inputs, False))
    end()


def copies():
    """No operand is copied for weights of either layout; explain() and the counters tell every other copy."""
    name, layer = start(), Layer()
    explain = mkernel.torch.explain
    x, ids, weights = layer.inputs(1, 6)
    gate, up, down = (layer.part(w, True) for w in (layer.gate, layer.up, layer.down))
    call = (x, ids, weights, gate, up, down, layer.experts, name)
    told = explain("moe_layer", *call, max_tokens=MOST, capacity=640)
    assert (told.path, told.why, told.copies, told.planned) == ("mkernel", "fused by mkernel", (), False), told
    assert (told.rows, told.bucket) == (6, MOST), told
    assert told.operation == ("moe_dispatch_gemm max_tokens=11 hidden=24 n=20 intermediate=16 experts=10 topk=3 capacity=640 bf16 "
                              "column_major cpu"), told
    assert "no copies" in str(told) and "not planned yet" in str(told)
    mkernel.torch.reset_counters()
    changed = counted(lambda: OPS.moe_layer(*call, max_tokens=MOST, capacity=640))
    assert changed == {"moe_layer": 1, "launches": 1, "plans_created": 1}, changed
    assert explain(OPS.moe_layer, *call, max_tokens=MOST, capacity=640).planned
    changed = counted(lambda: OPS.moe_layer(x[:4], ids[:4], weights[:4], *call[3:], max_tokens=MOST, capacity=640))
    assert changed == {"moe_layer": 1, "launches": 1, "plans_hit": 1}, changed
    assert mkernel.torch.counters()["copies"] == {}
    # Other types, views that are not dense, weights of two layouts: the smaller one is copied.
    wide = torch.cat([layer.w, layer.w], 2)[layer.mine, :, ::2]
    mixed = (x.t().contiguous().t(), ids.long(), weights.to(torch.bfloat16), wide, layer.experts, name)
    told = explain("moe_dispatch_gemm", *mixed)
    for words in ("x: it is not dense (strides", "topk_ids: torch.int64 becomes torch.int32", "topk_weights: torch.bfloat16 becomes",
                  "w: it is not dense and row_major, as the plan has all weights (strides"):
        assert words in str(told.copies), (words, told)
    assert told.bucket == 6 and len(told.copies) == 4, told
    wanted = layer.w[:, :, torch.arange(0, 2 * layer.n, 2) % layer.n]
    y = OPS.moe_dispatch_gemm(*mixed)
    layer.w = wanted
    close(y, layer.wanted(x, ids, weights.to(torch.bfloat16), False))
    told = explain("moe_layer", x, ids, weights, gate, up, layer.part(layer.down), layer.experts, name)
    assert "column_major cpu" in told.operation and len(told.copies) == 1, told
    assert "w2: it is not dense and column_major" in told.copies[0], told
    close(OPS.moe_layer(x, ids, weights, gate, up, layer.part(layer.down), layer.experts, name), layer.wanted(x, ids, weights, True))
    told = mkernel.torch.counters()["copies"]
    assert told["w2: it is not dense and column_major, as the plan has all weights"] == 1 and len(told) == 5, told
    # Tokens that change: a plan for each bucket, or one for max_tokens.
    changed = counted(lambda: [gemm(layer, layer.inputs(tokens, tokens), name) for tokens in (17, 19, 18, 20)])
    assert changed["plans_created"] == 1 and changed["plans_hit"] == 3, changed
    told = explain("moe_dispatch_gemm", x[:0], ids[:0], weights[:0], layer.part(layer.w), layer.experts, name)
    assert "nothing is launched" in told.why, told
    told = explain("moe_layer", *call, max_tokens=MOST, capacity=640, **layer.shared(True))
    assert " shared_intermediate=32 bf16 column_major cpu" in told.operation and told.copies == (), told
    told = explain("moe_layer", *call, max_tokens=MOST, **layer.shared(False, factors=weights.double().sum(1)))
    for words in ("shared_w1: it is not dense and column_major", "shared_w2: it is", "shared_weights: torch.float64 becomes"):
        assert words in str(told.copies), (words, told)
    y = OPS.moe_layer(*call, max_tokens=MOST, **layer.shared(False, factors=weights.double().sum(1)))
    close(y, layer.wanted(x, ids, weights, True, shared=weights.sum(1)))
    told = explain("moe_layer", x.float(), ids, weights, gate, up, down, layer.experts, name)
    assert told.path == "error" and "torch.float32" in told.why, told
    with raises(mkernel.InvalidArgument, "missing are ['topk_ids'"):
        explain("moe_layer", x)
    with raises(mkernel.InvalidArgument, "symm_mem::moe_layer"):
        explain("symm_mem::moe_layer", *call)
    end()


def compiled():
    """opcheck, and torch.compile without a graph break."""
    warnings.simplefilter("ignore")
    name, layer = start(), Layer()
    inputs = layer.inputs(1, 5)
    gate, up, down = (layer.part(w, True) for w in (layer.gate, layer.up, layer.down))
    whole = layer.part(torch.cat([layer.gate, layer.up], 2))
    for op, arguments in (
        (OPS.moe_dispatch_gemm, (*inputs, layer.part(layer.w), layer.experts, name)),
        (OPS.moe_layer, (*inputs, gate, up, down, layer.experts, name)),
        (OPS.moe_layer, (*inputs, whole, None, layer.part(layer.down), layer.experts, name)),
    ):
        several = [{}, {"max_tokens": MOST, "capacity": 640}, {"weights_on_input": True}]
        if op is OPS.moe_layer:
            several += [layer.shared(), layer.shared(True, True, inputs[2].sum(1))]
        for keywords in several:
            results = torch.library.opcheck(op.default, arguments, keywords)
            assert set(results.values()) == {"SUCCESS"} and len(results) == 4, (op, results)

    def block(x, ids, weights, gate, up, down):
        h = OPS.moe_layer(x * 2, ids, weights.softmax(1), gate.transpose(1, 2), up.transpose(1, 2), down.transpose(1, 2),
                          layer.experts, name, max_tokens=MOST)
        return torch.relu(h) + h

    stored = [w.transpose(1, 2) for w in (gate, up, down)]
    mkernel.torch.reset_counters()
    wanted = block(*inputs, *stored)
    for backend in ("eager", "aot_eager", "inductor"):
        assert torch.equal(torch.compile(block, backend=backend, fullgraph=True)(*inputs, *stored), wanted), backend
    dynamic = torch.compile(block, backend="aot_eager", fullgraph=True, dynamic=True)
    for tokens in (3, 9, 8, 11):
        inputs = layer.inputs(2, tokens)
        assert torch.equal(dynamic(*inputs, *stored), block(*inputs, *stored)), tokens
    assert mkernel.torch.counters()["copies"] == {}  # torch.compile hands the weights on as they lie
    # The shapes without a call, and what is wrong with them.
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        assert OPS.moe_layer(*layer.inputs(3, 4), gate, up, down, layer.experts, name).shape == (4, layer.n)
        with raises(mkernel.InvalidArgument, "num_experts = 12"):
            OPS.moe_layer(*layer.inputs(3, 4), gate, up, down, 12, name)
        on_gpu = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cuda:0") for t in (*inputs, gate, up, down)]
        told = mkernel.torch.explain("moe_layer", *on_gpu, layer.experts, name)
        assert told.path == "error" and "x is on cuda:0, and the group was made for GPU -1" in told.why, told
    end()


def on_gpus():
    """What the cuda executor takes, and what it refuses by name. Decided without a GPU, of tensors that have no memory."""
    name = start()
    membership = mkernel.torch._groups.membership_of(name)

    def explained(experts=10, topk=3, hidden=64, n=40, intermediate=24):
        def made(*shape, dtype=torch.bfloat16):
            return torch.empty(*shape, dtype=dtype, device="cuda:0")

        mine = mkernel.operations.block_size(experts, WORLD, RANK)
        routing = made(5, topk, dtype=torch.int64), made(5, topk, dtype=torch.float32)
        weights = [made(mine, columns, rows).transpose(1, 2)
                   for rows, columns in ((hidden, intermediate), (hidden, intermediate), (intermediate, n))]
        return mkernel.torch.explain("moe_layer", made(5, hidden), *routing, *weights, experts, name, max_tokens=8)

    with torch._subclasses.FakeTensorMode(), unittest.mock.patch.object(membership, "device", 0):
        told = explained()
        assert told.operation == ("moe_dispatch_gemm max_tokens=8 hidden=64 n=40 intermediate=24 experts=10 topk=3 bf16 column_major "
                                  "cuda"), told
        assert told.copies == ("topk_ids: torch.int64 becomes torch.int32",), told
        assert explained(experts=1024, topk=16).path == "mkernel"
        for sizes, words in (({"hidden": 60}, "hidden = 60"), ({"n": 36}, "n = 36"), ({"intermediate": 20}, "intermediate = 20"),
                             ({"topk": 17, "experts": 20}, "topk = 17"), ({"experts": 1025}, "num_experts = 1025")):
            told = explained(**sizes)
            assert told.path == "error" and f"{words}; the cuda executor takes" in told.why, told
    end()


def wrong():
    """Each wrong input is an exception that says what, and the group goes on."""
    name, layer = start(), Layer()
    x, ids, weights = layer.inputs(1, 4)
    w, (gate, up, down) = layer.part(layer.w), (layer.part(w) for w in (layer.gate, layer.up, layer.down))
    invalid, refused = mkernel.InvalidArgument, mkernel.torch.Refused

    def one(x=x, ids=ids, weights=weights, w=w, experts=layer.experts, group=name, **options):
        return OPS.moe_dispatch_gemm(x, ids, weights, w, experts, group, **options)

    def two(w1=gate, w1_up=up, w2=down, **shared):
        return OPS.moe_layer(x, ids, weights, w1, w1_up, w2, layer.experts, name, **shared)

    def with_shared(**changed):
        return two(**{**layer.shared(), **changed})

    for call, kind, words in (
        (lambda: one(x.float()), refused, ["x has dtype torch.float32", "torch.bfloat16"]),
        (lambda: one(w=w.half()), invalid, ["w has dtype torch.float16", "x torch.bfloat16"]),
        (lambda: one(ids=ids.short()), invalid, ["topk_ids has dtype torch.int16", "torch.int64"]),
        (lambda: one(weights=ids), invalid, ["topk_weights has dtype torch.int32", "floating-point"]),
        (lambda: one(x[0]), invalid, ["x has 1 dimensions, needed are 2"]),
        (lambda: one(w=w[0]), invalid, ["w has 2 dimensions, needed are 3"]),
        (lambda: one(ids=ids[:3], weights=weights[:3]), invalid, ["x of shape (4, 24) has 4 tokens", "topk_ids has 3"]),
        (lambda: one(weights=weights[:, :2]), invalid, ["(4, 3) and (4, 2)"]),
        (lambda: one(w=w[1:]), invalid, ["w of shape (4, 24, 20) has 4 experts", "num_experts = 10", f"rank {RANK} of 2 has 5"]),
        (lambda: one(experts=12), invalid, ["num_experts = 12", f"rank {RANK} of 2 has 6"]),
        (lambda: one(w=w[:, 1:]), invalid, ["x and w have shapes (4, 24) and (5, 23, 20)"]),
        (lambda: one(max_tokens=3), invalid, ["4 tokens, and max_tokens = 3"]),
        (lambda: one(max_tokens=-1), invalid, ["max_tokens = -1"]),
        (lambda: one(capacity=-1), invalid, ["capacity = -1"]),
        (lambda: one(group="nobody"), mkernel.NotFound, ["'nobody'"]),
        (lambda: one(ids=ids.to("meta")), invalid, ["topk_ids is on meta and x on cpu"]),
        (lambda: one(w=w.to("meta")), invalid, ["w is on meta and x on cpu"]),
        (lambda: two(w1_up=up[:, :, 1:]), invalid, ["w1 and w1_up have shapes (5, 24, 16) and (5, 24, 15)"]),
        (lambda: two(w1_up=None), invalid, ["w1 of shape (5, 24, 16) has 16 columns", "it must have 32"]),
        (lambda: two(w2=down[:, 1:]), invalid, ["has 16 columns", "w2 of shape (5, 15, 20)", "it must have 15"]),
        (lambda: two(w2=down[:, :0]), invalid, ["has no rows", "moe_dispatch_gemm"]),
        (lambda: two(w2=down[1:]), invalid, ["w2 of shape (4, 16, 20) has 4 experts"]),
        (lambda: with_shared(shared_w2=None), invalid, ["shared_w1 given", "needs both shared_w1 and shared_w2"]),
        (lambda: two(shared_weights=weights[:, 0]), invalid, ["shared_weights given", "needs both"]),
        (lambda: with_shared(shared_w1=down), invalid, ["shared_w1 has 3 dimensions, needed are 2"]),
        (lambda: with_shared(shared_w1=layer.shared_gate), invalid, ["shared_w1 of shape (24, 32) has 32 columns", "must have 64"]),
        (lambda: with_shared(shared_w1_up=layer.shared_up), invalid, ["shared_w1 and shared_w1_up have shapes (24, 64) and (24, 32)"]),
        (lambda: with_shared(shared_w2=layer.shared_down[:, 1:]), invalid, ["(32, 19)", "24 rows and 20 columns"]),
        (lambda: with_shared(shared_w2=layer.shared_down[:0]), invalid, ["shared_w2 of shape (0, 20) has no rows"]),
        (lambda: with_shared(shared_weights=weights), invalid, ["shared_weights has shape (4, 3), needed is (4,)"]),
        (lambda: with_shared(shared_weights=ids[:, 0]), invalid, ["shared_weights has dtype torch.int32", "floating-point"]),
        (lambda: with_shared(shared_w2=layer.shared_down.half()), invalid, ["shared_w2 has dtype torch.float16"]),
        (lambda: with_shared(shared_w2=layer.shared_down.to("meta")), invalid, ["shared_w2 is on meta and x on cpu"]),
        (lambda: with_shared(shared_w2=layer.shared_down.clone().requires_grad_()), mkernel.Unimplemented,
         ["shared_w2 requires a gradient"]),
        (lambda: one(experts=10, ids=ids[:, :0], weights=weights[:, :0]), invalid, ["topk = 0, but it must be 1..10"]),
        (lambda: one(w=w.clone().requires_grad_()), mkernel.Unimplemented, ["moe_dispatch_gemm: w requires a gradient"]),
        (lambda: two(w1_up=up.clone().requires_grad_()), mkernel.Unimplemented, ["w1_up requires a gradient", "torch.no_grad()"]),
        # The cuda executor has no kernel for it: its refusal comes from the library. This session has no GPU.
        (lambda: mkernel.torch._plans.MoeKey(4, 8, 8, 0, 4, 1, "bf16", "row_major", 0, "cuda").make(mkernel.torch.init()),
         mkernel.FailedPrecondition, ["device = -1"]),
    ):
        with raises(kind, *words):
            call()
    with torch.no_grad():
        close(one(w=w.clone().requires_grad_()), layer.wanted(x, ids, weights, False))
    # Ranks that make different calls, by name.
    with mkernel.torch.options(check=True):
        with raises(invalid, "different calls", "rank 0", "max_tokens=11", "rank 1", "max_tokens=12"):
            one(max_tokens=11 + RANK)
        with raises(invalid, "different calls", "rank 0", "max_tokens=4", "rank 1", "they must be the same"):
            one(w=w.half() if RANK else w)
        with raises(mkernel.torch.Refused, "x has dtype torch.float32"):
            one(x.float())
        close(one(), layer.wanted(x, ids, weights, False))
    with raises(invalid, "rank 1", "max_tokens=12"):
        one(max_tokens=11 + RANK)
    close(one(), layer.wanted(x, ids, weights, False))
    end()


def refused():
    """What one rank gives wrong, or more rows than the capacity: the same error on every rank, and the group goes on."""
    name, layer = start(), Layer()
    x, ids, weights = layer.inputs(1, 5)

    def spoiled(tensor, value):
        tensor = tensor.clone()
        if RANK == 2:
            tensor[4, 1] = value
        return tensor

    def good():
        inputs = layer.inputs(2, tokens_of(RANK, 1), skewed=True)
        close(moe(layer, inputs, name, True, True, max_tokens=MOST), layer.wanted(*inputs, True))

    for number in (10, -1, 2 ** 31 - 1):
        with raises(mkernel.InvalidArgument, f"rank 2: topk[4, 1] = {number}, but it must be 0..9"):
            moe(layer, (x, spoiled(ids, number), weights), name, max_tokens=MOST)
        good()
    with raises(mkernel.InvalidArgument, "rank 2: topk[4, 1] ="):
        moe(layer, (x, spoiled(ids.long(), 2 ** 32 + 1), weights), name, max_tokens=MOST)
    twice = ids.clone()
    twice[:, 1] = twice[:, 0]
    with raises(mkernel.InvalidArgument, "rank 0: topk[0, "):
        moe(layer, (x, twice, weights), name, max_tokens=MOST)
    for given in (weights, weights.double()):
        with raises(mkernel.InvalidArgument, "rank 2: weights[4, 1]"):
            gemm(layer, (x, ids, spoiled(given, float("nan"))), name, max_tokens=MOST)
    good()
    # The rows of each expert count as 64: a rank has room for two experts. Experts 2, 3 and 4 are of one rank.
    crowded = torch.tensor([2, 3, 4], dtype=torch.int32).repeat(5, 1)
    with raises(mkernel.ResourceExhausted, "rank 1 needs 192", "its capacity is 128"):
        gemm(layer, (x, crowded, weights), name, capacity=128)
    spread = torch.tensor([0, 2, 5], dtype=torch.int32).repeat(5, 1)
    close(gemm(layer, (x, spread, weights), name, capacity=128), layer.wanted(x, spread, weights, False))
    good()
    end()
