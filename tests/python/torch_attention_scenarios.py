"""The attention operators of mkernel.torch: values and gradients against fp64, torch.compile, what falls back, wrong input."""
import unittest.mock
import warnings

from rank import raises
from torch_attention_rank import Whole, places
from torch_rank import RANK, SOCKET, TIMEOUT, WORLD, counted, dist, end, name_of, operand, start, torch

import mkernel.torch
from mkernel.torch import _attention_torch, _plans

OPS = torch.ops.mkernel
OF_LSE = "the loss depends on lse"  # why PyTorch runs a backward pass
SPLIT = {False: "contiguous", True: "zigzag"}


def ring(whole, name, **keywords):
    """Forward and backward pass of this rank, checked. mkernel runs the second where it ran the first, and the loss depends on the
    result alone. Returns what the first changed in the counters."""
    sequence, zigzag = whole.out.shape[1], keywords.get("zigzag", True)
    split = SPLIT[whole.causal and zigzag]
    rows, leaves = places(sequence, split), whole.mine(split)
    if sequence % WORLD:
        keywords["sequence"] = sequence
    found = []
    changed = counted(lambda: found.extend(OPS.ring_attention(*leaves, whole.causal, whole.scale, name, **keywords)))
    by_torch = "launches" not in changed
    whole.check(*found, rows, parts_rounded=by_torch)
    backward = counted(lambda: whole.backward(*found, rows))
    assert backward["ring_attention_backward"] == 1 and ("launches" in backward) == (not by_torch and not whole.with_lse), backward
    whole.check_gradients(leaves, rows, 1 if whole.with_lse and not by_torch else 3)  # else parts of ranks are rounded, too
    return changed


def values():
    """Ring attention on mkernel: both types, full and causal, heads that share keys, sequences that do not divide, or shorter than
    the ranks are many."""
    name = start()
    seed = 0
    for causal in (False, True):
        for dtype in (torch.bfloat16, torch.float16):
            for heads in ((4, 4), (4, 2), (3, 1)):
                for with_lse, plan in ((True, "plans_created"), (False, "plans_hit")):
                    whole = Whole(seed := seed + 10, 6 * WORLD, causal=causal, heads=heads, dtype=dtype, with_lse=with_lse)
                    changed = ring(whole, name)
                    assert changed == {"ring_attention": 1, "launches": 1, plan: 1}, changed
        for sequence in (1, 2 * WORLD - 1, 7 * WORLD, 61):
            ring(Whole(seed := seed + 10, sequence, causal=causal, with_lse=False), name)
        ring(Whole(seed := seed + 10, 4 * WORLD, causal=causal, scale=0.3, with_lse=False), name)
        changed = ring(Whole(seed := seed + 10, 6 * WORLD, causal=causal, heads=(4, 2)), name)  # an operation that is there
        assert changed == {"ring_attention": 1, "launches": 1, "plans_hit": 1}, changed
    # The same bits from every call, also of views that are copied.
    whole = Whole(7, 4 * WORLD, causal=True, heads=(2, 2))
    q, k, v = whole.mine("zigzag")
    out, _ = OPS.ring_attention(q, k, v, True, None, name)
    packed = torch.stack((q, k, v), 2).detach()
    mkernel.torch.reset_counters()
    again, _ = OPS.ring_attention(*packed.unbind(2), True, None, name)
    assert torch.equal(out, again)
    assert mkernel.torch.counters()["copies"] == {f"{x}: it is not dense": 1 for x in "qkv"}, mkernel.torch.counters()
    empty = operand(1, RANK, (2, 0, 4, 16))
    out, lse = OPS.ring_attention(empty, empty, empty, True, None, name)
    assert out.shape == (2, 0, 4, 16) and lse.shape == (2, 4, 0)
    q, k, v = (x.detach() for x in (q, k, v))
    gradients = [OPS.ring_attention_backward(whole.d_out[:, places(4 * WORLD, "zigzag")], None, q, k, v, out, lse, True, None, name)
                 for out, lse in [OPS.ring_attention(q, k, v, True, None, name)] * 2]
    assert all(torch.equal(x, y) for x, y in zip(*gradients))
    assert not mkernel.torch.counters()["fallbacks"]
    no_operation(name)
    end()


def no_operation(name):
    """A library whose executor has no backward pass of ring attention, as all ranks find together."""
    whole = Whole(3, 10 * WORLD, causal=True, with_lse=False)
    rows, leaves = places(10 * WORLD, "zigzag"), whole.mine("zigzag")
    found = OPS.ring_attention(*leaves, True, None, name)
    refused = unittest.mock.Mock(side_effect=mkernel.Unimplemented("not yet"))
    mkernel.torch.reset_counters()
    with unittest.mock.patch.object(_plans.AttentionKey, "make", refused):
        whole.backward(*found, rows)
    assert refused.called
    whole.check_gradients(leaves, rows)
    assert mkernel.torch.counters()["fallbacks"] == {"ring_attention_backward: the library has no operation for it": 1}


def tiles():
    """The backward pass in tiles of a few rows, which end before and behind the diagonal."""
    name = start()
    for seed, (elements, fewest) in enumerate(((1, 1), (1, 5), (8 * 49, 1))):
        with (unittest.mock.patch.object(_attention_torch, "_TILE_ELEMENTS", elements),
              unittest.mock.patch.object(_attention_torch, "_FEWEST_TILE_ROWS", fewest)):
            for causal in (False, True):
                ring(Whole(10 * seed, 23, causal=causal), name)
                for queries, keys in ((9, 14), (14, 9)):
                    whole = Whole(10 * seed, queries, keys, causal=causal, rank=RANK)
                    leaves = [x.requires_grad_() for x in whole.given]
                    found = OPS.attention(*leaves, causal)
                    whole.backward(*found)
                    whole.check_gradients(leaves)
    # One of the results alone, and one operand alone.
    whole = Whole(5, 9, causal=True, rank=RANK)
    for index, result in ((0, 0), (1, 0), (2, 0), (0, 1), (1, 1)):
        operands = [x.detach().clone().requires_grad_(i == index) for i, x in enumerate(whole.given)]
        wide = [x.detach().double().requires_grad_(i == index) for i, x in enumerate(whole.given)]
        found, wanted = OPS.attention(*operands, True)[result], OPS.attention(*wide, True)[result]
        weights = operand(6, RANK, found.shape, torch.float32)
        (found * weights).sum().backward()
        (wanted * weights.double()).sum().backward()
        assert torch.allclose(operands[index].grad.double(), wide[index].grad, rtol=0.02, atol=0.02), (index, result)
    end()


def alone():
    """attention: each rank has its own operands, also more calls than others; keys and queries of different lengths. The backward pass
    is mkernel's where the loss depends on the result alone."""
    start()
    calls = {False: 0, True: 0}
    for number in range(2 if RANK else 4):
        for causal in (False, True):
            for queries, keys in ((9 + RANK, 9 + RANK), (5, 30 + number), (30, 5), (1, 17)):
                for with_lse in (False, True):
                    dtype, heads = (torch.bfloat16, torch.float16)[number % 2], ((4, 2), (3, 3), (3, 1), (2, 2))[number]
                    whole = Whole(10 * number, queries, keys, causal=causal, rank=RANK, dtype=dtype, heads=heads, with_lse=with_lse)
                    leaves = [x.requires_grad_() for x in whole.given]
                    out, lse = OPS.attention(*leaves, causal)
                    whole.check(out, lse)
                    whole.backward(out, lse)
                    whole.check_gradients(leaves)
                    calls[with_lse] += 1
    told = mkernel.torch.counters()
    assert told["fallbacks"] == {f"attention_backward: {OF_LSE}": calls[True]}, told
    assert told["attention"] == told["attention_backward"] == 2 * calls[True] and told["launches"] == 3 * calls[False], told
    whole = Whole(3, 8, causal=False, scale=0.7, rank=RANK)
    whole.check(*OPS.attention(*whole.given, scale=0.7))
    no_keys = operand(1, RANK, (2, 0, 4, 16)).requires_grad_()
    q = operand(1, RANK, (2, 3, 4, 16)).requires_grad_()
    out, lse = OPS.attention(q, no_keys, no_keys)
    assert not out.any() and out.shape == (2, 3, 4, 16) and lse.eq(float("-inf")).all()
    out.sum().backward()
    assert not q.grad.any() and no_keys.grad.shape == no_keys.shape
    backward_alone()
    end()


def windows():
    """attention with a sliding window, on mkernel and in PyTorch: windows smaller and larger than the sequence, queries and keys of
    different lengths, queries that see nothing."""
    start()
    served = 0
    for number, (window, causal) in enumerate((((0, -1), True), ((5, 0), True), ((3, 2), False), ((-1, 4), False), ((0, 0), False),
                                               ((300, 300), False), ((7, -1), False))):
        for queries, keys in ((70, 70), (9, 80), (80, 9), (1, 17)):
            for dtype, with_lse in ((torch.bfloat16, False), (torch.float16, True), (torch.float32, False)):
                whole = Whole(10 * number, queries, keys, causal=causal, rank=RANK, dtype=dtype, with_lse=with_lse, window=window)
                leaves = [x.requires_grad_() for x in whole.given]
                found = OPS.attention(*leaves, causal, None, *window)
                whole.check(*found)
                whole.backward(*found)
                whole.check_gradients(leaves)
                served += (1 + (not with_lse)) * (dtype != torch.float32)
    told = mkernel.torch.counters()
    assert told["launches"] == served and told["attention"] == told["attention_backward"] == 7 * 4 * 3, told
    reasons = {"attention: dtype torch.float32": 28, "attention_backward: dtype torch.float32": 28, f"attention_backward: {OF_LSE}": 28}
    assert told["fallbacks"] == reasons, told
    # In tiles, some of which lie outside of every window.
    with (unittest.mock.patch.object(_attention_torch, "_TILE_ELEMENTS", 1), unittest.mock.patch.object(_attention_torch, "_FEWEST_TILE_ROWS", 4)):
        whole = Whole(5, 40, 33, causal=False, dtype=torch.float32, rank=RANK, window=(6, 1))
        leaves = [x.requires_grad_() for x in whole.given]
        found = OPS.attention(*leaves, window_left=6, window_right=1)
        whole.check(*found)
        whole.backward(*found)
        whole.check_gradients(leaves)
    q = operand(1, RANK, (2, 6, 4, 16))
    told = mkernel.torch.explain(OPS.attention, q, q, q, True, window_left=2)
    assert told.operation == "attention batch=2 sequence=6 heads=4 kv_heads=4 head_dim=16 causal window=2,0 bf16 cpu", told
    assert told.backward.startswith("attention_backward") and "window=2,0" in told.backward, told
    assert "window" not in mkernel.torch.explain(OPS.attention, q, q, q, True, window_right=0).operation  # a causal mask says as much
    torch.library.opcheck(OPS.attention.default, (q, q, q, False, 0.4, 1, 2), test_utils=("test_schema", "test_faketensor"))
    for window, causal, text in (((-2, 0), False, "window_left = -2 is not at least 0"), ((0, -7), False, "window_right = -7 is not"),
                                 ((0, 3), True, "window_right = 3 is not -1 or 0 with causal")):
        with raises(mkernel.InvalidArgument, text):
            OPS.attention(q, q, q, causal, None, *window)
    end()


def backward_alone():
    """Gradients of views that are copied, with a scale; the same bits from every call."""
    whole = Whole(8, 70, 90, causal=True, scale=0.4, rank=RANK, with_lse=False)
    packed = [torch.stack((x, x), -1).requires_grad_() for x in whole.given]  # of which every second element is taken
    given = []
    for _ in range(2):
        mkernel.torch.reset_counters()
        leaves = [x[..., 0] for x in packed]
        out, lse = OPS.attention(*leaves, True, 0.4)
        given.append(torch.autograd.grad(out, leaves, whole.d_out.transpose(1, 2).contiguous().transpose(1, 2)))
        told = mkernel.torch.counters()
        wanted = {f"{name}: it is not dense": 1 + (name != "d_out") for name in ("q", "k", "v", "d_out")}
        assert told["copies"] == wanted and not told["fallbacks"] and told["launches"] == 2, told
    assert all(torch.equal(x, y) for x, y in zip(*given))
    for x, gradient in zip(whole.given, given[0]):
        x.grad = gradient
    whole.check_gradients(whole.given)


def fallbacks():
    """What PyTorch does instead: its values and gradients, the reason, and what explain() says of it."""
    dist.init_process_group("gloo")
    name = name_of(None)
    ring(Whole(1, 4 * WORLD, causal=True), name)  # without init()
    whole = Whole(2, 9, causal=True, rank=RANK)
    whole.check(*OPS.attention(*whole.given, True), parts_rounded=True)
    told = mkernel.torch.counters()["fallbacks"]
    not_called = {f"{op}: init() was not called for the process group": 1 for op in ("ring_attention", "attention")}
    assert told == {**not_called, f"ring_attention_backward: {OF_LSE}": 1}, told
    mkernel.torch.init(socket=SOCKET, timeout=TIMEOUT)
    contiguous, f32 = "causal over contiguous parts", "dtype torch.float32"
    for keywords, options, reason in (
        ({"causal": True}, {"zigzag": False}, contiguous),
        ({"causal": True, "heads": (3, 1), "dtype": torch.float16}, {"zigzag": False}, contiguous),
        ({"causal": True, "dtype": torch.float32}, {}, f32),
        ({"causal": False, "dtype": torch.float32}, {}, f32),
        ({"causal": True, "dtype": torch.float64}, {}, "dtype torch.float64"),
        ({"causal": False, "scale": -0.2}, {}, "scale is not above 0"),
        ({"causal": False, "scale": 0.0}, {}, "scale is not above 0"),
        ({"causal": True, "scale": -0.2}, {}, "scale is not above 0"),
        ({"causal": False, "dim": 4100, "batch": 1, "with_lse": False}, {}, "head_dim is above 4096"),
    ):
        for sequence in (4 * WORLD, 4 * WORLD + 3, 1):
            mkernel.torch.reset_counters()
            whole = Whole(3, sequence, **keywords)
            ring(whole, name, **options)
            told = mkernel.torch.counters()
            backward = f"ring_attention_backward: {OF_LSE if whole.with_lse else reason}"
            assert told["fallbacks"] == {f"ring_attention: {reason}": 1, backward: 1} and "launches" not in told, (reason, told)
    for queries, keys in ((6, 11), (11, 6), (8, 8)):
        mkernel.torch.reset_counters()
        whole = Whole(4, queries, keys, causal=True, dtype=torch.float32, rank=RANK, with_lse=False)
        leaves = [x.requires_grad_() for x in whole.given]
        found = OPS.attention(*leaves, True)
        whole.check(*found)
        whole.backward(*found)
        whole.check_gradients(leaves)
        assert mkernel.torch.counters()["fallbacks"] == {f"attention: {f32}": 1, f"attention_backward: {f32}": 1}
    explained(name)
    end()


def explained(name):
    explain = mkernel.torch.explain
    q, k = operand(1, RANK, (2, 6, 4, 16)), operand(1, RANK, (2, 6, 2, 16))
    told = explain(OPS.ring_attention, q, k, k, True, None, name)
    operation = f"ring_attention batch=2 sequence={6 * WORLD} heads=4 kv_heads=2 head_dim=16 causal bf16 cpu"
    assert (told.path, told.operation, told.planned, told.copies) == ("mkernel", operation, False, ()), told
    backward = operation.replace("ring_attention", "ring_attention_backward")
    assert told.backward == f"{backward}; in PyTorch where the loss depends on lse", told
    OPS.ring_attention(q, k, k, True, None, name)
    assert explain("ring_attention", q, k, k, True, None, name).planned
    told = explain(OPS.ring_attention, q, k, k, True, None, name, zigzag=False)
    assert told.path == "fallback" and "zigzag alone" in told.why, told
    told = explain(OPS.ring_attention_backward, q, None, q, k, k, q, q.new_empty(2, 4, 6, dtype=torch.float32), True, None, name)
    assert (told.path, told.operation) == ("mkernel", backward), told
    told = explain(OPS.attention, q[:, :3].transpose(1, 2).contiguous().transpose(1, 2), k, k, scale=0.5)
    assert told.operation == "attention batch=2 sequence=3 keys=6 heads=4 kv_heads=2 head_dim=16 full scale=0.5 bf16 cpu", told
    assert told.copies and told.copies[0].startswith("q: it is not dense (strides"), told
    backward = "attention_backward batch=2 sequence=3 keys=6 heads=4 kv_heads=2 head_dim=16 full scale=0.5 bf16 cpu"
    assert told.backward == f"{backward}; in PyTorch where the loss depends on lse", told
    q = q[:, :3].contiguous()
    out, lse = OPS.attention(q, k, k, scale=0.5)
    arguments = (q, k, k, out, lse, False, 0.5)
    told = explain(OPS.attention_backward, out.transpose(1, 2).contiguous().transpose(1, 2), None, *arguments)
    assert (told.path, told.operation, told.planned, told.backward) == ("mkernel", backward, False, None), told
    assert told.copies[0].startswith("d_out: it is not dense (strides") and len(told.copies) == 1, told
    OPS.attention_backward(out, None, *arguments)
    assert explain("attention_backward", out, None, *arguments).planned
    told = explain(OPS.attention_backward, out, lse, *arguments)
    assert told.path == "fallback" and "d_lse is given" in told.why, told
    told = explain(OPS.attention, *(x.float() for x in (q, k, k)))
    assert told.path == "fallback" and told.backward is None, told
    assert explain(OPS.attention, q[:0], k[:0], k[:0]).why.startswith("the result has no elements")
    assert explain(OPS.attention, q, k, k[:, :, :1]).path == "error"


def compiled():
    """opcheck, and torch.compile without a graph break, forward and backward."""
    warnings.simplefilter("ignore")
    name = start()
    for needs in (False, True):
        for causal in (False, True):
            whole = Whole(1, 6 * WORLD, causal=causal, rank=0)
            q, k, v = (x.detach().requires_grad_(needs) for x in whole.mine(SPLIT[causal]))
            for op, arguments, keywords in ((OPS.attention, (q, k, v, causal), {}), (OPS.attention, (q[:, :3], k, v), {}),
                                            (OPS.ring_attention, (q, k, v, causal, 0.3, name), {}),
                                            (OPS.ring_attention, (q, k, v, causal, None, name), {"zigzag": False})):
                results = torch.library.opcheck(op.default, arguments, keywords)
                assert set(results.values()) == {"SUCCESS"} and len(results) == 4, (op, results)
                if not needs:
                    check_backward_operator(op, arguments, keywords)

    def block(x, weight):
        q, k, v = (x @ weight).unflatten(-1, (3, 2, 16)).unbind(2)
        out, lse = OPS.ring_attention(q, k, v, True, None, name)
        own, _ = OPS.attention(q, k, v)
        return torch.relu(out + own).flatten(2) @ weight.t()[:32] * (lse * 0 + 1).mean()

    def gradients_of(function, rows=6):
        leaves = [operand(4, RANK, (2, rows, 24)).requires_grad_(), operand(5, RANK, (24, 96)).requires_grad_()]
        out = function(*leaves)
        (out * operand(7, RANK, out.shape)).sum().backward()
        return [out.detach(), *(leaf.grad for leaf in leaves)]

    wanted = gradients_of(block)
    for backend in ("eager", "aot_eager"):
        got = gradients_of(torch.compile(block, backend=backend, fullgraph=True))
        assert all(torch.equal(x, y) for x, y in zip(got, wanted)), backend
    got = gradients_of(torch.compile(block, fullgraph=True))
    for ours, theirs in zip(got, wanted):  # Inductor rounds less often
        assert torch.allclose(ours.float(), theirs.float(), rtol=0.05, atol=0.02 * theirs.float().abs().max().item())
    dynamic = torch.compile(block, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows in (3, 9, 8):
        got = gradients_of(dynamic, rows)
        assert all(torch.equal(x, y) for x, y in zip(got, gradients_of(block, rows))), rows
    end()


def check_backward_operator(op, arguments, keywords):
    q, k, v, *rest = (x.detach() if isinstance(x, torch.Tensor) else x for x in arguments)
    out, lse = op(q, k, v, *rest, **keywords)
    backward = getattr(OPS, f"{op._qualified_op_name.partition('::')[2]}_backward")
    rest = rest or [False]
    rest += [None] * (len(rest) == 1)
    results = torch.library.opcheck(backward.default, (torch.ones_like(out), None, q, k, v, out, lse, *rest), keywords)
    assert set(results.values()) == {"SUCCESS"}, (op, results)


def wrong():
    """Each wrong input is an exception that says what, and the group goes on."""
    name = start()
    q, k = operand(1, RANK, (2, 6, 4, 16)), operand(2, RANK, (2, 6, 2, 16))
    invalid = mkernel.InvalidArgument

    def ring_of(*operands, causal=True, scale=None, group=name, **keywords):
        return OPS.ring_attention(*operands, causal, scale, group, **keywords)

    for call, words in (
        (lambda: ring_of(q[0], k, k), ["q has 3 dimensions", "[batch, sequence, heads, head_dim]"]),
        (lambda: ring_of(q, k, k.half()), ["v has dtype torch.float16", "q torch.bfloat16"]),
        (lambda: ring_of(q.int(), k.int(), k.int()), ["torch.int32", "floating-point"]),
        (lambda: ring_of(q, k, k[:, :, :1]), ["k and v", "(2, 6, 2, 16)", "(2, 6, 1, 16)"]),
        (lambda: ring_of(q, k[..., :8], k[..., :8]), ["q and k", "batch or head_dim"]),
        (lambda: ring_of(q[:, :, :3], k, k), ["3 heads", "2", "multiple"]),
        (lambda: ring_of(q, k[:, :5], k[:, :5]), ["q has 6 positions and k 5"]),
        (lambda: ring_of(q, k, k, sequence=6 * WORLD + 5), [f"sequence = {6 * WORLD + 5}", f"rank {RANK} of {WORLD}"]),
        (lambda: ring_of(q, k, k, sequence=-1), ["sequence = -1"]),
        (lambda: ring_of(q, k, k, scale=float("inf")), ["scale = inf"]),
        (lambda: OPS.attention(q[..., :0], k[..., :0], k[..., :0]), ["head_dim 0"]),
        (lambda: OPS.attention(q.float(), k, k), ["k has dtype torch.bfloat16", "q torch.float32"]),
        (lambda: OPS.attention(q, k.to("meta"), k), ["k is on meta and q on cpu"]),
    ):
        with raises(invalid, *words):
            call()
    keys = k[:, :, :1]
    out, lse = OPS.attention(q, keys, keys)
    for d_out, d_lse, result, sums, words in (
        (out[:1], None, out, lse, ["d_out has shape (1, 6, 4, 16)", "(2, 6, 4, 16)"]),
        (out, lse[..., 1:], out, lse, ["d_lse has shape (2, 4, 5)", "(2, 4, 6)"]),
        (out, None, out[:, 1:], lse, ["out has shape (2, 5, 4, 16)"]),
        (out, None, out, lse.transpose(1, 2), ["lse has shape (2, 6, 4)"]),
        (out.to("meta"), None, out, lse, ["d_out is on meta and q on cpu"]),
    ):
        with raises(invalid, *words):
            OPS.attention_backward(d_out, d_lse, q, keys, keys, result, sums, False, None)
    with raises(mkernel.NotFound, "'nobody'", "ProcessGroup.group_name"):
        ring_of(q, k, k, group="nobody")
    with mkernel.torch.options(check=True):
        other = q if RANK == 0 else torch.cat((q, q))
        keys = k if RANK == 0 else torch.cat((k, k))
        with raises(invalid, "different calls", "rank 0", "batch=2", "rank 1", "batch=4"):
            ring_of(other, keys, keys)
        ring_of(q, k, k)
    leaf = q.clone().requires_grad_()
    out, _ = ring_of(leaf, k, k)
    with raises(mkernel.Unimplemented, "ring_attention_backward", "no backward"):
        torch.autograd.grad(out.sum(), leaf, create_graph=True)
    ring_of(q, k, k)
    end()
