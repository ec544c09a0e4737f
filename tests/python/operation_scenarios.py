"""The operations on ranks of their own, every element against fp64 of numpy."""
import numpy as np
from rank import LONG, RANK, SOCKET, WORLD, join, raises, say, wait_for_line

import mkernel

UNIT = {"bf16": 2.0 ** -8, "f16": 2.0 ** -11}  # largest relative rounding error


def narrow(values, dtype):
    """fp32 values in the type of operands; bf16 as uint16, rounded to the nearest, ties to even."""
    if dtype == "f16":
        return values.astype(np.float16)
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def widen(values):
    """fp64 of operands."""
    if values.dtype == np.float16:
        return values.astype(np.float64)
    return (values.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def operand(seed, rank, shape, dtype, scale=1.0):
    """Any rank makes any other rank's operand."""
    return narrow(scale * np.random.default_rng([seed, rank]).uniform(-1, 1, shape).astype(np.float32), dtype)


def poisoned(shape, dtype):
    return np.full(shape, 0xffff, np.uint16).view(np.float16 if dtype == "f16" else np.uint16)


def close(out, wanted, bound):
    """Every element within its bound; a NaN, where nobody wrote, is not."""
    wrong = ~(np.abs(widen(out) - wanted) <= bound)
    assert out.shape == wanted.shape and not wrong.any(), f"{wrong.sum()} of {wrong.size} elements are wrong"


def rows_of(rank, total, parts=WORLD):
    return slice(*mkernel.block_range(total, parts, rank))


def gemm(group, kind, dtype, b_layout):
    m, n, k = 203, 50, 77
    mine = rows_of(RANK, m)
    a_shapes = [(rows_of(r, m).stop - rows_of(r, m).start if kind == "ag_gemm" else m, k) for r in range(WORLD)]
    b_shape = (k, n) if b_layout == "row_major" else (n, k)
    a = [operand(1, rank, a_shapes[rank], dtype) for rank in range(WORLD)]
    b = [operand(2, rank, b_shape, dtype) for rank in range(WORLD)]
    wide = [widen(x) if b_layout == "row_major" else widen(x).T for x in b]
    if kind == "ag_gemm":
        wanted, terms = np.concatenate([widen(x) for x in a]) @ wide[RANK], 0
    else:
        products = [widen(x) @ y for x, y in zip(a, wide)]
        wanted, terms = sum(products), sum(np.abs(p) for p in products)
    if kind == "gemm_rs":
        wanted, terms = wanted[mine], terms[mine]
    # One rounding of the result, and of partial sums that travel.
    bound = 1.01 * UNIT[dtype] * (np.abs(wanted) + 2 * terms) + 1e-6 * np.sqrt(k * WORLD)
    with getattr(group, kind)(m, n, k, dtype=dtype, b_layout=b_layout) as operation:
        assert operation.a.shape == a[RANK].shape and operation.c.shape == wanted.shape
        c = poisoned(wanted.shape, dtype)
        launch = operation.bind(a[RANK], b[RANK], c, deadline=LONG)
        for _ in range(2):
            c.view(np.uint16)[:] = 0xffff
            pending = launch.launch()
            pending.wait(LONG)
            assert pending.done()
            close(c, wanted, bound)
        gathered = poisoned((m, k), dtype)
        if kind == "ag_gemm":
            c.view(np.uint16)[:] = 0xffff
            operation.run(a[RANK], b[RANK], c, gathered=gathered, deadline=LONG)
            close(c, wanted, bound)
            assert np.array_equal(gathered, np.concatenate(a))
        else:
            with raises(mkernel.InvalidArgument, kind, "only ag_gemm"):
                operation.bind(a[RANK], b[RANK], c, gathered=gathered)
        # Operands in a buffer of the group, and in shapes that are flat.
        with group.symmetric(a[0].nbytes + b[0].nbytes + 4096) as buffer:
            at = -(-a[RANK].nbytes // 64) * 64
            in_buffer = buffer.numpy("uint16", a[RANK].shape)
            in_buffer[:] = a[RANK].view(np.uint16)
            buffer.numpy("uint16", b_shape, offset=at)[:] = b[RANK].view(np.uint16)
            c.view(np.uint16)[:] = 0xffff
            views = buffer.view(dtype, in_buffer.shape), buffer.view(dtype, b_shape, offset=at)
            operation.run(*views, c.reshape(-1), timeout=LONG, compute_threads=2)
            close(c, wanted, bound)
            del views, in_buffer
        assert operation.status() is None


def several_b(group, dtype, b_layout):
    """One gather, three products."""
    m, k, columns = 101, 40, (24, 9, 70)
    a = [operand(1, rank, (rows_of(rank, m).stop - rows_of(rank, m).start, k), dtype) for rank in range(WORLD)]
    bs = [operand(2 + index, RANK, (k, n) if b_layout == "row_major" else (n, k), dtype) for index, n in enumerate(columns)]
    full = np.concatenate([widen(x) for x in a])
    with group.ag_gemm(m, columns[0], k, dtype=dtype, b_layout=b_layout, more_n=columns[1:]) as operation:
        cs = [poisoned((m, n), dtype) for n in columns]
        operation.run(a[RANK], bs[0], cs[0], more_b=bs[1:], more_c=cs[1:], timeout=LONG)
        for b, c in zip(bs, cs):
            wanted = full @ (widen(b) if b_layout == "row_major" else widen(b).T)
            close(c, wanted, 1.01 * UNIT[dtype] * np.abs(wanted) + 1e-6 * np.sqrt(k))
        with raises(mkernel.InvalidArgument, "ag_gemm", "more_b has 1 operands", "more_n has 2"):
            operation.bind(a[RANK], bs[0], cs[0], more_b=bs[1:2], more_c=cs[1:])
        with raises(mkernel.InvalidArgument, "more_c[1] has shape 101x9"):
            operation.bind(a[RANK], bs[0], cs[0], more_b=bs[1:], more_c=[cs[1], cs[1]])
    with raises(mkernel.InvalidArgument, "more_n has 4 numbers, at most 3"):
        group.ag_gemm(m, 8, k, more_n=(8, 8, 8, 8))
    with raises(mkernel.InvalidArgument, "more_n has a 0"):
        group.ag_gemm(m, 8, k, more_n=(8, 0))


def moe(group, dtype, intermediate, w_layout):
    tokens, hidden, n, experts, topk = [7, 0, 11, 5][RANK], 24, 20, 10, 3
    random = np.random.default_rng([3, RANK])
    x = operand(4, RANK, (tokens, hidden), dtype)
    chosen = np.array([random.permutation(experts)[:topk] for _ in range(tokens)], np.int32).reshape(tokens, topk)
    weights = random.uniform(0, 1, (tokens, topk)).astype(np.float32)
    w1 = operand(5, 0, (experts, hidden, 2 * intermediate or n), dtype, hidden ** -0.5)
    w2 = operand(6, 0, (experts, intermediate, n), dtype, max(intermediate, 1) ** -0.5)
    wanted = np.zeros((tokens, n))
    for t in range(tokens):
        for weight, expert in zip(weights[t], chosen[t]):
            h = widen(x[t]) @ widen(w1[expert])
            if intermediate:
                gate, up = h[:intermediate], h[intermediate:]
                h = (gate / (1 + np.exp(-gate)) * up) @ widen(w2[expert])
            wanted[t] += weight * h
    mine = rows_of(RANK, experts)
    if w_layout == "column_major":
        w1, w2 = (np.ascontiguousarray(w.transpose(0, 2, 1)) for w in (w1, w2))
    mine2 = w2[mine] if intermediate else None
    sizes = {"max_tokens": 11, "hidden": hidden, "n": n, "experts": experts, "topk": topk, "intermediate": intermediate,
             "w_layout": w_layout}
    with group.moe(**sizes, dtype=dtype) as operation:
        y = poisoned((tokens, n), dtype)
        operation.run(x, chosen, weights, w1[mine], mine2, y, timeout=LONG)
        # Roundings of the intermediate values, of results that travel, and of their sum.
        close(y, wanted, 8 * UNIT[dtype] * (np.abs(wanted) + 1))
        with raises(mkernel.InvalidArgument, "tokens = 12", "0..11"):
            operation.bind(np.zeros((12, hidden), np.uint16), chosen, weights, w1[mine], None, y)
        with raises(mkernel.InvalidArgument, "topk has data type i64", "i32"):
            operation.bind(x, chosen.astype(np.int64), weights, w1[mine], w2[mine] if intermediate else None, y)
        # What one rank gives wrong is refused on all of them, and the group goes on.
        spoiled = chosen.copy()
        if RANK == 2:
            spoiled[4, 1] = 10
        with raises(mkernel.InvalidArgument, "rank 2: topk[4, 1] = 10, but it must be 0..9"):
            operation.run(x, spoiled, weights, w1[mine], mine2, y, timeout=LONG)
        y = poisoned((tokens, n), dtype)
        operation.run(x, chosen, weights, w1[mine], mine2, y, timeout=LONG)
        close(y, wanted, 8 * UNIT[dtype] * (np.abs(wanted) + 1))
        if not intermediate:
            with raises(mkernel.InvalidArgument, "w2 must be None"):
                operation.bind(x, chosen, weights, w1[mine], w2[mine], y)
            with raises(mkernel.InvalidArgument, "w1_up must be None"):
                operation.bind(x, chosen, weights, w1[mine], None, y, w1_up=w1[mine])
        else:
            halves = [np.ascontiguousarray(half) for half in np.split(w1[mine], 2, 2 if w_layout == "row_major" else 1)]
            y = poisoned((tokens, n), dtype)
            operation.run(x, chosen, weights, halves[0], mine2, y, w1_up=halves[1], timeout=LONG)
            close(y, wanted, 8 * UNIT[dtype] * (np.abs(wanted) + 1))
            with raises(mkernel.InvalidArgument, "w1 has shape"):
                operation.bind(x, chosen, weights, w1[mine], mine2, y, w1_up=halves[1])
    if not intermediate:  # where it makes no difference whether weights multiply rows or results
        with group.moe(**sizes, dtype=dtype, weights_on_input=True) as operation:
            y = poisoned((tokens, n), dtype)
            operation.run(x, chosen, weights, w1[mine], None, y, timeout=LONG)
            close(y, wanted, 8 * UNIT[dtype] * (np.abs(wanted) + 1))
    else:
        inner = 8
        shared1 = operand(7, 0, (hidden, 2 * inner), dtype, hidden ** -0.5)
        shared2 = operand(8, 0, (inner, n), dtype, inner ** -0.5)
        gate, up = np.split(widen(x) @ widen(shared1), 2, 1)
        alone = (gate / (1 + np.exp(-gate)) * up) @ widen(shared2)
        if w_layout == "column_major":
            shared1, shared2 = (np.ascontiguousarray(w.T) for w in (shared1, shared2))
        with group.moe(**sizes, dtype=dtype, shared_intermediate=inner) as operation:
            with raises(mkernel.InvalidArgument, "shared_w2", "None"):
                operation.bind(x, chosen, weights, w1[mine], mine2, poisoned((tokens, n), dtype), shared_w1=shared1)
            for factors in (None, weights[:, 0].copy()):
                y = poisoned((tokens, n), dtype)
                operation.run(x, chosen, weights, w1[mine], mine2, y, shared_w1=shared1, shared_w2=shared2, shared_weights=factors,
                              timeout=LONG)
                close(y, wanted + alone * (1 if factors is None else factors[:, None]), 8 * UNIT[dtype] * (np.abs(wanted) + 1))
            halves = [np.ascontiguousarray(half) for half in np.split(shared1, 2, 1 if w_layout == "row_major" else 0)]
            y = poisoned((tokens, n), dtype)
            operation.run(x, chosen, weights, w1[mine], mine2, y, shared_w1=halves[0], shared_w1_up=halves[1], shared_w2=shared2,
                          timeout=LONG)
            close(y, wanted + alone, 8 * UNIT[dtype] * (np.abs(wanted) + 1))
        with group.moe(**sizes, dtype=dtype) as operation:
            with raises(mkernel.InvalidArgument, "shared_w1 must be None, because shared_intermediate = 0"):
                operation.bind(x, chosen, weights, w1[mine], mine2, y, shared_w1=shared1)
    # Each expert's rows count as 64, so a rank has room for two experts. Experts 2, 3 and 4 are of one rank.
    with group.moe(**sizes, dtype=dtype, capacity=128) as operation:
        with raises(mkernel.ResourceExhausted, "expert 4 has 23 rows", "rank 1 needs 192", "its capacity is 128"):
            operation.run(x, np.tile(np.int32([2, 3, 4]), (tokens, 1)), weights, w1[mine], mine2, y, timeout=LONG)
        y = poisoned((tokens, n), dtype)
        operation.run(x, np.tile(np.int32([0, 2, 5]), (tokens, 1)), weights, w1[mine], mine2, y, timeout=LONG)
        assert np.isfinite(widen(y)).all()


def grouped_gemm(group, dtype, b_layout):
    """Every rank has ends of its own."""
    rows, k, n, groups = 70, 24, 20, 5
    ends = np.cumsum(np.int32([[3, 0, 40, 1, 20], [0, 0, 0, 0, 70], [0, 0, 0, 0, 0], [9, 9, 9, 9, 9]][RANK]), dtype=np.int32)
    a, b = operand(10, RANK, (rows, k), dtype), operand(11, RANK, (groups, k, n), dtype)
    wanted, begin = np.zeros((ends[-1], n)), 0
    for matrix, end in zip(widen(b), ends):
        wanted[begin:end], begin = widen(a)[begin:end] @ matrix, end
    if b_layout == "column_major":
        b = np.ascontiguousarray(b.transpose(0, 2, 1))
    with group.grouped_gemm(max_rows=rows, k=k, n=n, groups=groups, dtype=dtype, b_layout=b_layout) as operation:
        c = poisoned((rows, n), dtype)
        operation.run(a, ends, b, c, timeout=LONG)
        close(c[:ends[-1]], wanted, 1.01 * UNIT[dtype] * np.abs(wanted) + 1e-6 * np.sqrt(k))
        assert (c[ends[-1]:].view(np.uint16) == 0xffff).all()
        with raises(mkernel.InvalidArgument, "ends has data type i64", "i32"):
            operation.bind(a, ends.astype(np.int64), b, c)
        with raises(mkernel.InvalidArgument, "b has shape"):
            operation.bind(a, ends, b[:4], c)
        if RANK == 1:  # a rank alone is refused, and the group goes on
            bad = ends.copy()
            bad[2] = -1
            with raises(mkernel.InvalidArgument, "grouped_gemm: ends[2] = -1, but it must be 0..70"):
                operation.run(a, bad, b, c, timeout=LONG)
        operation.run(a, ends, b, c, timeout=LONG)
        assert operation.status() is None


def gemms():
    group = join()
    for kind in ("ag_gemm", "gemm_rs", "gemm_ar"):
        for dtype in ("bf16", "f16"):
            for layout in ("row_major", "column_major"):
                gemm(group, kind, dtype, layout)


def grouped_gemms():
    group = join()
    for dtype in ("bf16", "f16"):
        for layout in ("row_major", "column_major"):
            grouped_gemm(group, dtype, layout)
            several_b(group, dtype, layout)


def moes():
    group = join()
    for dtype in ("bf16", "f16"):
        for intermediate in (0, 16):
            moe(group, dtype, intermediate, "row_major")
            moe(group, dtype, intermediate, "column_major")
    with raises(mkernel.InvalidArgument, "rank 1", "column-major"):
        group.moe(max_tokens=1, hidden=2, n=2, experts=2, topk=1, w_layout=("row_major", "column_major")[RANK % 2])


def counted():
    """Launches and fallbacks, numbers that differ from rank to rank, for the test to find in mkctl."""
    with mkernel.connect(SOCKET, name=f"rank {RANK}") as session, session.join("test", WORLD, RANK) as group:
        assert group.session is session
        first, second = group.gemm_ar(8, 8, 8, dtype="f16"), group.ag_gemm(8, 8, 8, dtype="f16")
        operands = [bytearray(128) for _ in range(3)]
        for _ in range(5):
            first.run(*operands, timeout=LONG)
        rows = second.a.shape[0]
        second.run(bytearray(16 * rows), operands[1], operands[2], timeout=LONG)
        for _ in range(10 + RANK):
            session.count_fallback()
        say("counted")
        wait_for_line()
        with session.join(f"alone {RANK}", 1, 0) as own:  # the two numbers are the session's, over all its groups
            own.gemm_rs(8, 8, 8, dtype="f16").run(*operands, timeout=LONG)
        say("once more")
        wait_for_line()
    with raises(mkernel.FailedPrecondition, "session is closed"):
        session.count_fallback()


def overhead():
    """One rank: prints the microseconds of the client's own part of a launch."""
    import time

    from mkernel._library import lib

    group = join()
    operation = group.ag_gemm(8, 8, 8, dtype="f16")
    launch = operation.bind(*(np.zeros((8, 8), np.float16) for _ in range(3)))
    for _ in range(100):
        launch.run()
    launch._launch = lambda *_: 0  # the library's part is its own
    count, begin = 20000, time.perf_counter()
    for _ in range(count):
        handle = launch._operation._handle
        launch.launch()
        handle.in_flight.clear()
    stub = (time.perf_counter() - begin) / count
    print(f"launch without the library {stub * 1e6:.2f} us")
    launch._launch = lib.mk_gemm_launch
    begin = time.perf_counter()
    for _ in range(2000):
        pending = launch.launch()
    launch_time = (time.perf_counter() - begin) / 2000
    pending.wait(LONG)
    print(f"launch {launch_time * 1e6:.2f} us")
    begin = time.perf_counter()
    for _ in range(2000):
        launch.run()
    print(f"run {(time.perf_counter() - begin) / 2000 * 1e6:.2f} us")
