"""The operators of mkernel.torch on ranks of their own: values against fp64, layouts, buckets, gradients, torch.compile."""
import warnings

from rank import raises
from torch_rank import RANK, WORLD, close, counted, end, every, operand, start, torch

import mkernel.torch
from mkernel.torch._groups import membership_of

OPS = torch.ops.mkernel
DTYPES = (torch.bfloat16, torch.float16)


def gathered(values, name, shape, dim, dtype, views=lambda x: x):
    """One AllGather+GEMM with three B: two that one launch multiplies, and one of another layout."""
    k, seed = shape[-1], next(values)
    a = [views(operand(seed, rank, shape, dtype)) for rank in range(WORLD)]
    bs = [operand(seed + 100, RANK, (k, 5), dtype)]
    bs += [operand(seed + 200 + n, RANK, (n, k), dtype).t() for n in (9, 4)]
    full = torch.cat(a, dim)
    for keep in (True, False):
        returned, results = OPS.fused_all_gather_matmul(a[RANK], bs, dim, name, return_A=keep)
        assert (returned is not None) == keep
        assert not keep or torch.equal(returned, full)
        assert len(results) == 3
        for b, c in zip(bs, results):
            close(c, full.double() @ b.double())


def reduced(values, name, shape, dim, dtype, views=lambda x: x):
    """GEMM+ReduceScatter and GEMM+AllReduce, sum and avg."""
    k, seed = shape[-1], next(values)
    a = [views(operand(seed, rank, shape, dtype)) for rank in range(WORLD)]
    for transposed in (False, True):
        b = [operand(seed + 100, rank, (k, 7), dtype) for rank in range(WORLD)]
        b = [x.t().contiguous().t() if transposed else x for x in b]
        parts = [x.double() @ y.double() for x, y in zip(a, b)]
        for op, scale in (("sum", 1), ("avg", 1 / WORLD)):
            wanted, terms = sum(parts) * scale, sum(p.abs() for p in parts) * scale
            c = OPS.fused_matmul_reduce_scatter(a[RANK], b[RANK], op, dim, name)
            close(c, wanted.chunk(WORLD, dim)[RANK], terms.chunk(WORLD, dim)[RANK], 2)
            assert c.is_contiguous()
            close(OPS.fused_matmul_all_reduce(a[RANK], b[RANK], op, name), wanted, terms, 2)


def values():
    name, seeds = start(), iter(range(1, 1000))
    strided = {"every other column": lambda x: torch.stack([x, x], -1).flatten(-2)[..., ::2],
               "transposed": lambda x: x.movedim(0, 1).contiguous().movedim(1, 0)}
    for dtype in DTYPES:
        for shape, dims in (((4, 6), (0,)), ((3, 6), (0,)), ((5, 2, 6), (0, 1)), ((2, 3, 9, 10), (0, 1, 2)), ((1, 1), (0,))):
            for dim in dims:
                gathered(seeds, name, shape, dim, dtype)
                whole = list(shape)
                whole[dim] *= WORLD
                reduced(seeds, name, whole, dim, dtype)
    for views in strided.values():
        gathered(seeds, name, (6, 3, 8), 0, torch.bfloat16, views)
        gathered(seeds, name, (6, 3, 8), 1, torch.bfloat16, views)
        reduced(seeds, name, (WORLD * 2, 3, 8), 0, torch.bfloat16, views)
    # A view of B that is neither dense nor transposed, and operands without rows or columns.
    a, b = operand(1, RANK, (4, 6)), operand(2, RANK, (12, 10))[::2, ::2]
    _, (c,) = OPS.fused_all_gather_matmul(a, [b], 0, name, return_A=False)
    close(c, torch.cat(every(lambda rank: operand(1, rank, (4, 6)))) @ b.double())
    _, (c,) = OPS.fused_all_gather_matmul(a[:0], [b], 0, name, return_A=False)
    assert c.shape == (0, 5)
    full, (c, d) = OPS.fused_all_gather_matmul(a, [b[:, :0], b], 0, name)
    assert c.shape == (4 * WORLD, 0) and d.shape == (4 * WORLD, 5) and full.shape == (4 * WORLD, 6)
    assert OPS.fused_matmul_reduce_scatter(a[:0], b, "sum", 0, name).shape == (0, 5)
    end()


def copies():
    """No operand is copied for dimension 0 and dense rows; explain() and the counters tell every other copy."""
    name = start()
    explain = mkernel.torch.explain
    a, weight = operand(1, RANK, (8, 2, 16)), operand(2, RANK, (12, 16))
    call = (a, [weight.t(), weight.t()], 0, name)
    told = explain(OPS.fused_all_gather_matmul, *call, return_A=False)
    assert (told.path, told.copies, told.planned, told.rows, told.bucket) == ("mkernel", (), False, 16, 16), told
    assert told.operation == f"ag_gemm m={16 * WORLD} n=12+12 k=16 bf16 column_major cpu", told
    assert "one launch multiplies Bs[0], Bs[1]" in str(told) and "no copies" in str(told), told
    mkernel.torch.reset_counters()
    changed = counted(lambda: OPS.fused_all_gather_matmul(*call, return_A=False))
    assert changed == {"fused_all_gather_matmul": 1, "launches": 1, "plans_created": 1}, changed
    assert mkernel.torch.counters()["copies"] == {}
    assert explain("fused_all_gather_matmul", *call).planned
    assert "return_A copies what was gathered" in explain("mkernel::fused_all_gather_matmul", *call).why
    for tensor, dim, words in ((a, 1, "rows do not lie one behind the other"), (a[:, :, ::2].contiguous()[:7], 0, "14 to 14"),
                               (a[:5, :1], 0, "do not lie")):
        told = explain("fused_all_gather_matmul", tensor, [weight.t()[: tensor.shape[-1]].contiguous()], dim, name)
        assert told.path == "mkernel" and (words in str(told.copies) or told.bucket == told.rows), told
    told = explain("fused_all_gather_matmul", operand(1, 0, (17, 16)), [weight.t()[:, ::2]], 0, name)
    assert "17 to 20" in str(told) and "B: it is neither dense" in str(told) and "padded result" in str(told), told
    told = explain("fused_matmul_reduce_scatter", operand(1, 0, (3, WORLD, 16)), weight.t(), "sum", 1, name)
    assert "goes back to its place" in str(told), told
    OPS.fused_all_gather_matmul(operand(1, 0, (17, 16)), [weight.t()], 0, name)
    assert mkernel.torch.counters()["copies"] == {"A: its rows are padded to those of the bucket": 1,
                                                  "C: the rows of each rank are taken out of the padded result": 1}
    assert explain("fused_matmul_all_reduce", a.float(), weight.t().float(), "sum", name).path == "error"
    assert "max" in explain("fused_matmul_all_reduce", a, weight.t(), "max", name).why
    with mkernel.torch.options(sm_margin=8):
        assert "sm_margin has no meaning" in explain("fused_matmul_all_reduce", a, weight.t(), "sum", name).why
    with raises(mkernel.InvalidArgument, "missing are ['B', 'reduce_op', 'group_name']"):
        explain("fused_matmul_all_reduce", a)
    with raises(mkernel.InvalidArgument, "aten::mm"):
        explain(torch.ops.aten.mm, a)
    end()


def buckets():
    """M that changes at every call makes a plan when its bucket is first seen, and none after that."""
    name = start(max_plans=6)
    k, b = 8, operand(3, RANK, (8, 4))

    def call(rows):
        full = torch.cat(every(lambda rank: operand(rows, rank, (rows, k))))
        _, (c,) = OPS.fused_all_gather_matmul(operand(rows, RANK, (rows, k)), [b], 0, name, return_A=False)
        close(c, full @ b.double())
        total = operand(rows, RANK, (rows, k))
        parts = [operand(rows, rank, (rows, k)).double() @ operand(3, rank, (8, 4)).double() for rank in range(WORLD)]
        close(OPS.fused_matmul_all_reduce(total, b, "sum", name), sum(parts), sum(p.abs() for p in parts), 2)

    def first():
        for rows in (32, 24, 20):
            call(rows)

    def again():
        for rows in (31, 19, 23, 21, 32, 17, 22, 18, 30):
            call(rows)

    assert counted(first)["plans_created"] == 6
    changed = counted(again)
    assert "plans_created" not in changed and changed["padded"] == 16 and changed["plans_hit"] == 18, changed
    with torch.inference_mode():
        call(19)
    call(18)
    with mkernel.torch.options(buckets=1):
        changed = counted(lambda: [call(rows) for rows in (17, 25, 32)])
        assert changed["padded"] == 4 and "plans_created" not in changed, changed
    with mkernel.torch.options(buckets=0):
        changed = counted(lambda: call(17))
        assert changed["plans_created"] == 2 and changed["plans_evicted"] == 2 and "padded" not in changed, changed
    # The plans that went were those that were not used for longest, on every rank: 24, and not 32 that came first.
    assert "plans_created" not in counted(lambda: [call(rows) for rows in (32, 20)])
    changed = counted(lambda: [call(rows) for rows in (32, 17, 24, 20)])
    assert changed["plans_evicted"] == changed["plans_created"] > 0, changed
    disagreement(name, b)
    end()


def disagreement(name, b):
    """Ranks that disagree about M within one bucket. Rows that they have not yet all had at once are compared, in any case: one rank got
    NaN in its tail, and the others lost a row. With numbers that are both known, NaN, or by option an error that names both."""
    rows = 18 if RANK == 0 else 17
    a = operand(5, RANK, (rows, 8))
    forgotten = [plan.agreed_rows.clear() for plan in membership_of(name).plans._plans.values()]
    assert forgotten
    before = mkernel.torch.counters()["launches"]
    with raises(mkernel.InvalidArgument, "rows of A", "rank 0 [18, ", "rank 1 [17, "):
        OPS.fused_all_gather_matmul(a, [b], 0, name, return_A=False)
    assert mkernel.torch.counters()["launches"] == before
    for same in (17, 18):
        OPS.fused_all_gather_matmul(operand(5, RANK, (same, 8)), [b], 0, name, return_A=False)
    with mkernel.torch.options(check=True):
        with raises(mkernel.InvalidArgument, "different calls", "rank 0", "[18, 8]", "rank 1", "[17, 8]"):
            OPS.fused_all_gather_matmul(a, [b], 0, name, return_A=False)
        OPS.fused_all_gather_matmul(a[:17], [b], 0, name, return_A=False)
    _, (c,) = OPS.fused_all_gather_matmul(a, [b], 0, name, return_A=False)
    nan = c.view(WORLD, rows, 4).isnan()
    if RANK == 0:
        assert nan[1:, 17].all() and not nan[:, :17].any() and not nan[0].any()
    else:
        assert not nan.any()


def gradients():
    """Against fp64 on all ranks' operands: with a cotangent of each rank for its own result."""
    name, dtype = start(), torch.float16
    for dim, shape in ((0, (5, 2, 6)), (1, (2, 3, 6))):
        for keep in (False, True):
            gather_gradients(name, dim, shape, dtype, keep)
        whole = list(shape)
        whole[dim] *= WORLD
        for op in ("sum", "avg"):
            scatter_gradients(name, dim, whole, dtype, op)
    end()


def flat(tensor, dim):
    return tensor.movedim(dim, 0).flatten(0, -2)


def gather_gradients(name, dim, shape, dtype, keep):
    k = shape[-1]
    a = operand(1, RANK, shape, dtype).requires_grad_()
    weight = operand(2, RANK, (4, k), dtype).requires_grad_()
    other = operand(3, RANK, (k, 3), dtype).requires_grad_()
    unused = operand(4, RANK, (k, 3), dtype).requires_grad_()
    full, results = OPS.fused_all_gather_matmul(a, [weight.t(), other, unused], dim, name, return_A=keep)
    cotangents = [operand(10 + index, RANK, c.shape, dtype) for index, c in enumerate(results[:2])]
    loss = sum((c * g).sum() for c, g in zip(results, cotangents))
    whole = list(shape)
    whole[dim] *= WORLD
    if keep:
        loss = loss + (full * operand(20, RANK, whole, dtype)).sum()
    loss.backward()
    wanted = 0
    for rank in range(WORLD):
        wanted = wanted + operand(10, rank, results[0].shape, dtype).double() @ operand(2, rank, (4, k), dtype).double()
        wanted = wanted + operand(11, rank, results[1].shape, dtype).double() @ operand(3, rank, (k, 3), dtype).double().t()
        if keep:
            wanted = wanted + operand(20, rank, whole, dtype).double()
    close(a.grad, wanted.chunk(WORLD, dim)[RANK], 2.0 * WORLD, 2)
    rows = flat(torch.cat(every(lambda rank: operand(1, rank, shape, dtype)), dim), dim)
    close(weight.grad, flat(cotangents[0].double(), dim).t() @ rows, 1, 2)
    close(other.grad, rows.t() @ flat(cotangents[1].double(), dim), 1, 2)
    # The gradient of a transposed weight lies as the weight does: nothing is copied on its way there.
    transposed = weight.t()
    _, (c,) = OPS.fused_all_gather_matmul(a, [transposed], dim, name, return_A=False)
    (gradient,) = torch.autograd.grad((c * cotangents[0]).sum(), transposed)
    assert gradient.stride() == transposed.stride()
    assert unused.grad is None or not unused.grad.any()


def scatter_gradients(name, dim, shape, dtype, op):
    k, scale = shape[-1], 1 / WORLD if op == "avg" else 1
    a = operand(5, RANK, shape, dtype).requires_grad_()
    weight = operand(6, RANK, (4, k), dtype).requires_grad_()
    c = OPS.fused_matmul_reduce_scatter(a, weight.t(), op, dim, name)
    (c * operand(7, RANK, c.shape, dtype)).sum().backward()
    full = torch.cat(every(lambda rank: operand(7, rank, c.shape, dtype)), dim) * scale
    close(a.grad, full @ weight.detach().double(), 1, 2)
    close(weight.grad, flat(full, dim).t() @ flat(a.detach().double(), dim), 1, 2)
    assert weight.grad.stride() == weight.stride()
    # One that needs a gradient alone; and the all-reduce, whose result is one tensor that every rank has.
    only = operand(6, RANK, (k, 4), dtype).requires_grad_()
    (OPS.fused_matmul_reduce_scatter(a.detach(), only, op, dim, name) * operand(7, RANK, c.shape, dtype)).sum().backward()
    close(only.grad, flat(a.detach().double(), dim).t() @ flat(full, dim), 1, 2)
    for tensor in (a, weight):
        tensor.grad = None
    c = OPS.fused_matmul_all_reduce(a, weight.t(), op, name)
    cotangent = operand(8, 0, c.shape, dtype)
    (c * cotangent).sum().backward()
    close(a.grad, cotangent.double() * scale @ weight.detach().double(), 1, 2)
    close(weight.grad, flat(cotangent.double() * scale, 0).t() @ flat(a.detach().double(), 0), 1, 2)


def compiled():
    """opcheck, and torch.compile without a graph break, forward and backward."""
    warnings.simplefilter("ignore")
    name = start()
    a, whole = operand(1, RANK, (9, 1, 6)), operand(2, RANK, (3 * WORLD, 3, 6))  # both padded
    weight = operand(3, RANK, (5, 6))
    for needs in (False, True):
        a, whole, weight = (x.detach().requires_grad_(needs) for x in (a, whole, weight))
        samples = [(OPS.fused_all_gather_matmul, (a, [weight.t(), weight.t()], dim, name), {"return_A": keep})
                   for dim in (0, 1) for keep in (True, False)]
        samples += [(OPS.fused_matmul_reduce_scatter, (whole, weight.t(), op, 0, name), {}) for op in ("sum", "avg")]
        samples += [(OPS.fused_matmul_reduce_scatter, (whole.movedim(0, 1), weight.t(), "sum", 1, name), {})]
        samples += [(OPS.fused_matmul_all_reduce, (whole, weight.t(), "avg", name), {})]
        for op, arguments, keywords in samples:
            results = torch.library.opcheck(op.default, arguments, keywords)
            assert set(results.values()) == {"SUCCESS"} and len(results) == 4, (op, results)

    def block(x, up, down):
        _, (h,) = OPS.fused_all_gather_matmul(x, [up.t()], 0, name, return_A=False)
        return OPS.fused_matmul_reduce_scatter(torch.relu(h), down.t(), "sum", 0, name) + x

    def gradients_of(function):
        shapes = ((6, 8), (12, 8), (8, 12))
        leaves = [operand(4 + index, RANK, shape).requires_grad_() for index, shape in enumerate(shapes)]
        out = function(*leaves)
        (out * operand(7, RANK, (6, 8))).sum().backward()
        return [out.detach(), *(leaf.grad for leaf in leaves)]

    wanted = gradients_of(block)
    for backend in ("eager", "aot_eager"):
        got = gradients_of(torch.compile(block, backend=backend, fullgraph=True))
        assert all(torch.equal(x, y) for x, y in zip(got, wanted)), backend
    # Another M: the same graph, or one more compilation, but never a break.
    dynamic = torch.compile(block, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows in (3, 9, 8, 17):
        x, up, down = operand(4, RANK, (rows, 8)), operand(5, RANK, (12, 8)), operand(6, RANK, (8, 12))
        assert torch.equal(dynamic(x, up, down), block(x, up, down)), rows
    end()


def wrong():
    """Each wrong input is an exception that says what, and the group goes on."""
    name = start()
    a, b = operand(1, RANK, (8, 6)), operand(2, RANK, (6, 4))
    gather, scatter = OPS.fused_all_gather_matmul, OPS.fused_matmul_reduce_scatter
    for call, kind, words in (
        (lambda: gather(a.float(), [b.float()], 0, name), mkernel.torch.Refused, ["torch.float32", "torch.bfloat16"]),
        (lambda: gather(a, [b.half()], 0, name), mkernel.InvalidArgument, ["B has dtype torch.float16", "A torch.bfloat16"]),
        (lambda: gather(a, [b], 1, name), mkernel.InvalidArgument, ["(8, 6) and (6, 4)"]),
        (lambda: gather(a, [torch.cat([b] * WORLD)], 1, name), mkernel.torch.Refused, ["gather_dim = 1 is the last dimension"]),
        (lambda: gather(a, [b], 2, name), mkernel.InvalidArgument, ["gather_dim = 2", "0..1"]),
        (lambda: gather(a, [b], -1, name), mkernel.InvalidArgument, ["gather_dim = -1"]),
        (lambda: gather(a, [b, b.t()], 0, name), mkernel.InvalidArgument, ["Bs[1]", "(8, 6) and (4, 6)"]),
        (lambda: gather(a, [], 0, name), mkernel.InvalidArgument, ["Bs is empty"]),
        (lambda: gather(a[0], [b], 0, name), mkernel.InvalidArgument, ["A has 1 dimensions"]),
        (lambda: gather(a, [b[0]], 0, name), mkernel.InvalidArgument, ["B has 1 dimensions"]),
        (lambda: gather(a[:, :0], [b[:0]], 0, name), mkernel.torch.Refused, ["no columns"]),
        (lambda: gather(a, [b], 0, "nobody"), mkernel.NotFound, ["'nobody'", "ProcessGroup.group_name"]),
        (lambda: scatter(a, b, "max", 0, name), mkernel.InvalidArgument, ["'max'", "sum, avg"]),
        (lambda: scatter(a[:7], b, "sum", 0, name), mkernel.InvalidArgument, ["7 along scatter_dim = 0", f"{WORLD} ranks"]),
        (lambda: mkernel.torch.set_options(timeout=0), mkernel.InvalidArgument, ["timeout = 0"]),
        (lambda: mkernel.torch.set_options(buckets=3), mkernel.InvalidArgument, ["buckets = 3"]),
        (lambda: mkernel.torch.set_options(unknown=3), TypeError, ["unknown"]),
        (lambda: mkernel.torch.nn.RowParallelLinear(WORLD + 1, 4), mkernel.InvalidArgument, [f"in_features = {WORLD + 1}"]),
    ):
        with raises(kind, *words):
            call()
    with raises(NotImplementedError, "mkernel::fused_all_gather_matmul", "Sparse"):  # the text is torch's
        gather(a.to_sparse(), [b], 0, name)
    gather(a, [b], 0, name)
    end()
