"""grouped_mm(): every element against fp64, what torch's own does instead and why, gradients, torch.compile."""
import warnings

from rank import raises
from torch_rank import RANK, SOCKET, TIMEOUT, close, counted, dist, end, operand, start, torch

import mkernel.torch

grouped_mm = mkernel.torch.grouped_mm


def groups_of(ends):
    return zip((0, *ends[:-1]), ends)


def wanted(a, b, ends):
    """Of the rows that belong to groups, and the sums of the magnitudes."""
    parts = [(a[begin:end].double() @ b[g].double(), a[begin:end].double().abs() @ b[g].double().abs())
             for g, (begin, end) in enumerate(groups_of(ends))]
    return torch.cat([c for c, _ in parts]), torch.cat([terms for _, terms in parts])


def operands(seed, rows, k, n, groups, dtype=torch.bfloat16, transposed=False):
    b = operand(seed + 1, RANK, (groups, n, k) if transposed else (groups, k, n), dtype)
    return operand(seed, RANK, (rows, k), dtype), b.transpose(1, 2) if transposed else b


def check(c, a, b, ends, rows):
    assert c.shape == (rows, b.shape[2]) and c.is_contiguous() and c.dtype == a.dtype, (c.shape, c.stride(), c.dtype)
    product, _ = wanted(a, b, ends)
    close(c[: ends[-1]], product, dtype=c.dtype)


def values():
    """Ranks call with other sizes, and one of them more often: nobody waits for another."""
    start()
    for call in range(4 if RANK else 2):
        for dtype in (torch.bfloat16, torch.float16):
            for transposed in (False, True):
                rows = 40 + 9 * RANK + call
                ends = [[3, 3, 17, rows], [rows] * 4, [0, 0, 0, rows - 7]][call % 3]
                a, b = operands(call, rows, 24, 20, 4, dtype, transposed)
                check(grouped_mm(a, b, offs=torch.tensor(ends, dtype=torch.int32)), a, b, ends, rows)
    told = mkernel.torch.counters()
    assert told["fallbacks"] == {} and told["grouped_mm"] == told["launches"], told
    assert told["copies"].keys() <= {"self: its rows are padded to those of the bucket"}, told
    # One operation for all rows of a bucket, and none for results without elements.
    a, b = operands(7, 48, 16, 24, 3)
    offs = torch.tensor([5, 6, 30], dtype=torch.int32)
    changed = counted(lambda: [grouped_mm(a[:rows], b, offs=offs) for rows in (48, 46, 47)])
    assert changed == {"grouped_mm": 3, "launches": 3, "plans_created": 1, "plans_hit": 2, "padded": 2}, changed
    changed = counted(lambda: grouped_mm(a[:0], b, offs=torch.zeros(3, dtype=torch.int32)))
    assert changed == {"grouped_mm": 1}, changed
    view = torch.cat([a, a], 1)[:, ::2]
    check(grouped_mm(view, b, offs=offs), view, b, offs.tolist(), 48)
    assert mkernel.torch.counters()["copies"]["self: it is not dense"] == 1
    invalid = mkernel.InvalidArgument
    for wrong, words in (
        (lambda: grouped_mm(a, b, offs=torch.tensor([5, 4, 30], dtype=torch.int32)), ["offs[1] = 4", "5..48"]),
        (lambda: grouped_mm(a, b, offs=torch.tensor([5, 6, 49], dtype=torch.int32)), ["offs[2] = 49", "6..48", "48 rows"]),
        (lambda: grouped_mm(a[:9], b, offs=torch.tensor([3, 5, 10], dtype=torch.int32)), ["offs[2] = 10", "self has 9 rows"]),
        (lambda: grouped_mm(a[:0], b, offs=torch.tensor([0, 0, 1], dtype=torch.int32)), ["offs[2] = 1", "self has 0 rows"]),
        (lambda: grouped_mm(a, b, offs=offs.long()), ["offs has shape (3,) and dtype torch.int64"]),
        (lambda: grouped_mm(a, b, offs=offs[1:]), ["offs has shape (2,)", "needed are (3,)"]),
        (lambda: grouped_mm(a, b[:, 1:], offs=offs), ["(48, 16) and (3, 15, 24)"]),
        (lambda: grouped_mm(a, b, offs=offs.to("meta")), ["are on cpu, cpu and meta"]),
    ):
        with raises(invalid, *words):
            wrong()
    check(grouped_mm(a, b, offs=offs), a, b, offs.tolist(), 48)
    end()


def fallbacks():
    """What torch's own does: its result, and the reason."""
    dist.init_process_group("gloo")
    a, b = operands(1, 32, 16, 24, 3)
    offs = torch.tensor([8, 8, 32], dtype=torch.int32)
    own = torch._grouped_mm(a, b, offs=offs)
    assert torch.equal(grouped_mm(a, b, offs=offs), own)  # without init()
    mkernel.torch.init(socket=SOCKET, timeout=TIMEOUT)
    one = operand(3, 0, (3, 32, 16))
    wide = operand(4, 0, (3, 16, 48))[:, :, :24]
    many = operand(5, 0, (1025, 8, 8)), torch.full((1025,), 8, dtype=torch.int32)
    for call, reason in (
        (lambda f: f(one, b), "operands are not 2-d, 3-d and offs"),
        (lambda f: f(one, wide), "operands are not 2-d, 3-d and offs"),
        (lambda f: f(a.t(), operand(6, 0, (32, 24)), offs=offs), "operands are not 2-d, 3-d and offs"),
        (lambda f: f(a.float(), b.float(), offs=offs), "dtype torch.float32"),
        (lambda f: f(a, wide, offs=offs), "mat2 is not dense"),
        (lambda f: f(operand(7, 0, (8, 8)), many[0], offs=many[1]), "groups are above 1024"),
    ):
        mkernel.torch.reset_counters()
        try:
            theirs = call(torch._grouped_mm)
        except (RuntimeError, ValueError) as error:  # this PyTorch has it no more than mkernel
            with raises(type(error)):
                call(grouped_mm)
        else:
            ours = call(grouped_mm)
            assert torch.equal(ours, theirs) and ours.is_contiguous(), reason
        told = mkernel.torch.counters()
        assert told["fallbacks"] == {f"grouped_mm: {reason}": 1} and told.get("launches", 0) == 0, (reason, told)
    explained(a, b, offs)
    assert torch.allclose(grouped_mm(a, b, offs=offs).float(), own.float(), atol=0.05, rtol=0.02)
    # A group of this process alone goes with shutdown(), and comes back.
    mkernel.torch.shutdown()
    mkernel.torch.reset_counters()
    grouped_mm(a, b, offs=offs)
    assert list(mkernel.torch.counters()["fallbacks"]) == ["grouped_mm: init() was not called for the process group"]
    mkernel.torch.init(socket=SOCKET, timeout=TIMEOUT)
    assert counted(lambda: grouped_mm(a, b, offs=offs))["launches"] == 1
    end()


def explained(a, b, offs):
    op = torch.ops.mkernel.grouped_mm
    told = mkernel.torch.explain(op, a, b, offs)
    operation = "grouped_gemm max_rows=32 k=16 n=24 groups=3 bf16 row_major cpu"
    assert (told.path, told.operation, told.planned, told.rows, told.bucket) == ("mkernel", operation, False, 32, 32), told
    assert told.copies == () and told.expected is None, told
    grouped_mm(a, b, offs=offs)
    assert mkernel.torch.explain("grouped_mm", a, b, offs=offs).planned
    told = mkernel.torch.explain(op, a[:17], b, offs)
    assert (told.rows, told.bucket) == (17, 20) and "padded to those of the bucket (17 to 20)" in told.copies[0], told
    told = mkernel.torch.explain(op, torch.stack((a, a), -1)[..., 0], b, offs)
    assert told.copies == ("self: it is not dense (strides (32, 2))",), told
    assert mkernel.torch.explain(op, a[:0], b, offs).why.startswith("the product has no elements")
    told = mkernel.torch.explain(op, a.float(), b.float(), offs)
    assert told.path == "fallback" and "torch.float32" in told.why, told
    assert mkernel.torch.explain(op, a, b, offs.long()).path == "error"


def compiled():
    """opcheck, gradients, and torch.compile without a graph break."""
    warnings.simplefilter("ignore")
    start()
    offs = torch.tensor([5, 5, 32], dtype=torch.int32)
    op = torch.ops.mkernel.grouped_mm.default
    for transposed in (False, True):
        a, b = operands(1, 32, 16, 24, 3, transposed=transposed)
        results = torch.library.opcheck(op, (a, b, offs))
        assert set(results.values()) == {"SUCCESS"} and len(results) == 4, results
        a.requires_grad_()
        b = b.detach().requires_grad_()
        out = grouped_mm(a, b, offs=offs)
        gradient = operand(9, RANK, out.shape)
        out.backward(gradient)
        assert a.grad.stride() == a.stride() and b.grad.stride() == b.stride(), (a.grad.stride(), b.grad.stride())
        for g, (begin, last) in enumerate(groups_of(offs.tolist())):
            rows, given = a.detach()[begin:last].double(), gradient[begin:last].double()
            close(a.grad[begin:last], given @ b.detach()[g].double().t(), roundings=2)
            close(b.grad[g], rows.t() @ given, roundings=2)
    # The result of a fallback has the same strides as that of mkernel.
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        for shapes, result in ((((40, 16), (3, 16, 20)), (40, 20)), (((3, 8, 16), (3, 16, 24)), (3, 8, 24)),
                               (((16, 40), (40, 24)), (3, 16, 24))):
            made = grouped_mm(*(torch.empty(shape, dtype=torch.bfloat16) for shape in shapes), offs=torch.empty(3, dtype=torch.int32))
            assert made.shape == result and made.is_contiguous(), (shapes, made.shape)

    def block(a, b, offs):
        return torch.relu(grouped_mm(a * 2, b.transpose(1, 2), offs=offs)) + 1

    a, stored = operand(1, RANK, (32, 16)), operand(2, RANK, (3, 24, 16))
    expected = block(a, stored, offs)
    for backend in ("eager", "aot_eager", "inductor"):
        assert torch.equal(torch.compile(block, backend=backend, fullgraph=True)(a, stored, offs), expected), backend
    dynamic = torch.compile(block, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows in (33, 37, 40):
        a = operand(3, RANK, (rows, 16))
        assert torch.equal(dynamic(a, stored, offs)[:32], block(a, stored, offs)[:32]), rows
    assert {key for key in mkernel.torch.counters()["fallbacks"]} <= {"grouped_mm: operands are not 2-d, 3-d and offs"}
    end()
