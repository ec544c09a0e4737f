"""The operators of mkernel.torch on CUDA tensors."""
import contextlib
import time
import warnings

from rank import raises
from torch_gpu_rank import GPU, RANKS_PER_GPU, begin, call, margin, meet, no_launches, on_gpu
from torch_rank import RANK, SOCKET, TIMEOUT, WORLD, close, dist, end, every, name_of, operand, torch

import mkernel.torch

OPS = torch.ops.mkernel


def gather_values(name, seed, shape, dim, dtype, views=lambda x: x):
    k = shape[-1]
    a = [views(operand(seed, rank, shape, dtype)) for rank in range(WORLD)]
    bs = [operand(seed + 100, RANK, (k, 40), dtype)]  # torch multiplies it; the others are one launch
    bs += [operand(seed + 200 + n, RANK, (n, k), dtype).t() for n in (72, 24)]
    mine = views(on_gpu(seed, RANK, shape, dtype))
    assert mine.stride() == a[RANK].stride()
    full, results = call(OPS.fused_all_gather_matmul, mine, [b.to(GPU) for b in bs], dim, name)
    whole = torch.cat(a, dim)
    assert torch.equal(full.cpu(), whole)
    for b, c in zip(bs, results):
        close(c.cpu(), whole.double() @ b.double())


def reduce_values(name, seed, shape, dim, dtype, views=lambda x: x):
    k = shape[-1]
    a = [views(operand(seed, rank, shape, dtype)) for rank in range(WORLD)]
    for transposed in (False, True):
        b = [operand(seed + 100, rank, (k, 56), dtype) for rank in range(WORLD)]
        mine = b[RANK].t().contiguous().t() if transposed else b[RANK]
        parts = [x.double() @ y.double() for x, y in zip(a, b)]
        for op, scale in (("sum", 1), ("avg", 1 / WORLD)):
            wanted, terms = sum(parts) * scale, sum(p.abs() for p in parts) * scale
            c = call(OPS.fused_matmul_reduce_scatter, views(on_gpu(seed, RANK, shape, dtype)), mine.to(GPU), op, dim, name)
            close(c.cpu(), wanted.chunk(WORLD, dim)[RANK], terms.chunk(WORLD, dim)[RANK], 2)
            c = call(OPS.fused_matmul_all_reduce, views(on_gpu(seed, RANK, shape, dtype)), mine.to(GPU), op, name)
            close(c.cpu(), wanted, terms, 2)


def values():
    """Both types, layouts of A and B, every dimension that is gathered or scattered, rows that are padded."""
    name = begin()
    strided = (lambda x: torch.stack([x, x], -1).flatten(-2)[..., ::2], lambda x: x.movedim(0, 1).contiguous().movedim(1, 0))
    seed = 0
    for dtype in (torch.bfloat16, torch.float16):
        for shape, dims in (((4, 64), (0,)), ((300, 72), (0,)), ((5, 2, 64), (0, 1)), ((1, 8), (0,))):
            for dim in dims:
                seed += 1
                gather_values(name, seed, shape, dim, dtype)
                whole = list(shape)
                whole[dim] *= WORLD
                reduce_values(name, seed, whole, dim, dtype)
    for views in strided:
        gather_values(name, 50, (6, 3, 64), 0, torch.bfloat16, views)
        reduce_values(name, 51, (WORLD * 2, 3, 64), 0, torch.bfloat16, views)
    # Operands that begin in the middle of 16 bytes are copied; a B without columns, an A without rows.
    a, b = on_gpu(1, RANK, (9, 64)).flatten()[4:-60].view(8, 64), on_gpu(2, RANK, (64, 24))
    _, (c, none) = call(OPS.fused_all_gather_matmul, a, [b, b[:, :0]], 0, name, return_A=False)
    full = torch.cat([operand(1, rank, (9, 64)).flatten()[4:-60].view(8, 64) for rank in range(WORLD)])
    close(c.cpu(), full.double() @ b.cpu().double())
    assert none.shape == (8 * WORLD, 0)
    assert any("does not begin at a multiple of 16" in what for what in mkernel.torch.counters()["copies"])
    assert OPS.fused_matmul_reduce_scatter(a[:0], b, "sum", 0, name).shape == (0, 24)
    end()


def graphs():
    """Captured once, replayed with other inputs; what a graph has captured is never dropped."""
    name = begin(max_plans=3)
    a, b = torch.empty(256, 128, dtype=torch.bfloat16, device=GPU), on_gpu(2, RANK, (128, 64))
    w = on_gpu(3, RANK, (64, 128))
    graph = torch.cuda.CUDAGraph()

    def layer():
        _, (h,) = OPS.fused_all_gather_matmul(a, [b], 0, name, return_A=False)
        return OPS.fused_matmul_reduce_scatter(h, w, "sum", 0, name)

    a.copy_(operand(1, RANK, (256, 128)))
    with raises(mkernel.FailedPrecondition, "ag_gemm", "before the capture"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            layer()
    call(layer)
    with torch.cuda.graph(graph):
        y = layer()
    for seed in range(10, 30):
        a.copy_(operand(seed, RANK, (256, 128)))
        if seed == 20:  # in between other shapes come and go
            for rows in (16, 32, 64, 128):
                call(OPS.fused_all_gather_matmul, a[:rows], [b], 0, name, return_A=False)
        meet()
        graph.replay()
        mkernel.torch.synchronize()
        full = torch.cat([operand(seed, rank, (256, 128)) for rank in range(WORLD)]).double()
        parts = [(full @ operand(2, rank, (128, 64)).double()).bfloat16().double() @ operand(3, rank, (64, 128)).double()
                 for rank in range(WORLD)]
        close(y.cpu(), sum(parts).chunk(WORLD)[RANK], sum(p.abs() for p in parts).chunk(WORLD)[RANK] + 16.0, 3)
    assert mkernel.torch.counters()["plans_evicted"] >= 3
    call(OPS.fused_all_gather_matmul, a[:16], [b], 0, name, return_A=False)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        OPS.fused_all_gather_matmul(a[:16], [b], 0, name, return_A=False)
    with raises(mkernel.ResourceExhausted, "max_plans", "captured"):
        OPS.fused_all_gather_matmul(a[:32], [b], 0, name, return_A=False)
    end()


def streams():
    """Calls that change streams follow each other: nothing else orders these."""
    name = begin()
    b = on_gpu(2, RANK, (64, 64))
    inputs = [on_gpu(seed, RANK, (512, 64)) for seed in range(10, 20)]
    several = [torch.cuda.Stream() for _ in range(2)]
    results = []

    def calls():
        results.clear()
        for index, a in enumerate(inputs):
            with torch.cuda.stream(several[index % 2]):
                results.append(OPS.fused_all_gather_matmul(a, [b], 0, name, return_A=False)[1][0])

    call(calls)
    for seed, c in zip(range(10, 20), results):
        full = torch.cat(every(lambda rank: operand(seed, rank, (512, 64))))
        close(c.cpu(), full @ b.cpu().double())
    end()


def short_way():
    """Calls like one before take the short way, with other data, types and layouts told apart; whatever changes the answer ends it."""
    name = begin()
    gather, scatter, reduce = OPS.fused_all_gather_matmul, OPS.fused_matmul_reduce_scatter, OPS.fused_matmul_all_reduce

    def round_of(seed, rows, dtype, transposed):
        a, b = operand(seed, RANK, (rows, 64), dtype), [operand(seed + 1, rank, (64, 40), dtype) for rank in range(WORLD)]
        mine = b[RANK].t().contiguous().t() if transposed else b[RANK]
        on = a.to(GPU), mine.to(GPU)
        full = torch.cat([operand(seed, rank, (rows, 64), dtype) for rank in range(WORLD)])
        parts = [operand(seed, rank, (rows, 64), dtype).double() @ b[rank].double() for rank in range(WORLD)]
        terms = sum(p.abs() for p in parts)
        returned, (c,) = call(gather, on[0], [on[1]], 0, name)
        close(c.cpu(), full.double() @ mine.double())
        assert torch.equal(returned.cpu(), full)
        more = [operand(seed + 2, RANK, (n, 64), dtype).t() if transposed else operand(seed + 2, RANK, (64, n), dtype) for n in (56, 24)]
        _, results = call(gather, on[0], [on[1], *(x.to(GPU) for x in more)], 0, name, return_A=False)
        for x, c in zip((mine, *more), results):
            close(c.cpu(), full.double() @ x.double())
        close(call(scatter, *on, "sum", 0, name).cpu(), sum(parts).chunk(WORLD)[RANK], terms.chunk(WORLD)[RANK], 2)
        close(call(reduce, *on, "avg", name).cpu(), sum(parts) / WORLD, terms / WORLD, 2)

    from mkernel.torch import _extension
    from mkernel.torch._options import remembered

    taken = []
    for seed in range(1, 4):
        for rows in (64, 128):
            for dtype in (torch.bfloat16, torch.float16):
                for transposed in (False, True):
                    round_of(seed, rows, dtype, transposed)
        taken.append(len(remembered))
    assert taken == [32] * 3, taken
    if _extension.extension is not None:  # all calls but the first of a kind, and those of "avg"
        assert sum(_extension.extension.taken().values()) >= 2 * 8 * 3, _extension.extension.taken()
    with mkernel.torch.options(timeout=20.0):
        assert not remembered
        round_of(9, 64, torch.bfloat16, False)
    assert not remembered
    # Operands that ask for gradients, and operands out of line, do not go it.
    a, b = on_gpu(1, RANK, (64, 64)), on_gpu(2, RANK, (64, 64))
    call(reduce, a, b, "sum", name)
    odd = on_gpu(1, RANK, (65, 64)).flatten()[4:-60].view(64, 64)
    close(call(reduce, odd, b, "sum", name).cpu(),
          sum(operand(1, rank, (65, 64)).flatten()[4:-60].view(64, 64).double() @ operand(2, rank, (64, 64)).double()
              for rank in range(WORLD)), 64.0, 2)
    c = call(reduce, a.requires_grad_(), b, "sum", name)
    assert c.requires_grad
    end()


SPIN = """
extern "C" __global__ void spin(volatile int* flag, int seconds) {
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (*flag == 0 && now - begin < seconds * 1000000000ULL);
}
"""


def beside_others():
    """Two groups on two streams, in another order on every other rank, beside a kernel of 32 CTAs that fill their multiprocessors
    and end only when all launches have."""
    name = begin()
    some = [dist.new_group([rank, rank + 1]) for rank in range(0, WORLD, 2)][RANK // 2]
    mkernel.torch.init(some, socket=SOCKET, timeout=TIMEOUT)
    mkernel.torch.set_options(sm_margin=margin(2 * RANKS_PER_GPU, 32))
    first, second, resident = (torch.cuda.Stream() for _ in range(3))
    a, b = on_gpu(1, RANK, (1024, 256)), on_gpu(2, RANK, (256, 128))
    flag = torch.zeros(1, dtype=torch.int32, device=GPU)
    shared = torch.cuda.get_device_properties(GPU).shared_memory_per_block_optin
    spin = torch.cuda._compile_kernel(SPIN, "spin")
    spin.set_shared_memory_config(shared)
    results = {}

    def calls():
        order = [(first, name), (second, name_of(some))]
        for stream, group in order if RANK % 2 == 0 else reversed(order):
            with torch.cuda.stream(stream):
                results[group] = OPS.fused_all_gather_matmul(a, [b], 0, group, return_A=False)[1][0]

    def spinning():
        if RANK < torch.cuda.device_count():  # one rank of each GPU
            with torch.cuda.stream(resident):
                spin(grid=(32, 1, 1), block=(32, 1, 1), args=(flag, 10), shared_mem=shared)

    flag.fill_(1)
    spinning()
    with no_launches():  # makes the plans, in the same order on every rank
        for group in (name, name_of(some)):
            OPS.fused_all_gather_matmul(a, [b], 0, group, return_A=False)
        calls()
    meet()
    flag.zero_()
    meet()
    spinning()
    for _ in range(5):
        calls()
    first.synchronize()
    second.synchronize()
    assert RANK >= torch.cuda.device_count() or not resident.query(), "the resident kernel has ended before the launches"
    flag.fill_(1)
    mkernel.torch.synchronize()
    ranks = dist.get_process_group_ranks(some)
    for group, members in ((name, range(WORLD)), (name_of(some), ranks)):
        full = torch.cat([operand(1, rank, (1024, 256)) for rank in members]).double()
        close(results[group].cpu(), full @ b.cpu().double())
    end()


def late_rank():
    """A rank that does not call: the launch ends at its deadline, and the next call and synchronize() say who was missing."""
    name = begin()
    a, b = on_gpu(1, RANK, (64, 64)), on_gpu(2, RANK, (64, 64))
    gather = OPS.fused_all_gather_matmul
    call(gather, a, [b], 0, name, return_A=False)
    if RANK == 0:
        with mkernel.torch.options(timeout=1.0):
            gather(a, [b], 0, name, return_A=False)
        with raises(mkernel.DeadlineExceeded, "ag_gemm", "rank 1"):
            mkernel.torch.synchronize()
        with raises(mkernel.Error, "ag_gemm"):
            gather(a, [b], 0, name, return_A=False)
    meet()
    mkernel.torch.shutdown()
    mkernel.torch.init(socket=SOCKET, timeout=TIMEOUT)
    call(gather, a, [b], 0, name, return_A=False)
    meet()
    # The same without synchronize(): a later call hears of it.
    if RANK == 0:
        with raises(mkernel.DeadlineExceeded, "ag_gemm", "rank 1"):
            with mkernel.torch.options(timeout=0.5):
                for _ in range(100):
                    gather(a, [b], 0, name, return_A=False)
                    time.sleep(0.1)
    meet()
    end()


def wrong():
    """What the cuda executor does not take is refused by name, and the group goes on."""
    name = begin()
    a, b = on_gpu(1, RANK, (64, 64)), on_gpu(2, RANK, (64, 64))
    gather, reduce = OPS.fused_all_gather_matmul, OPS.fused_matmul_all_reduce
    for broken, kind, words in (
        (lambda: gather(a, [b[:, :60]], 0, name), mkernel.torch.Refused, ["B has 60 columns", "multiples of 8"]),
        (lambda: gather(a[:, :60], [b[:60]], 0, name), mkernel.torch.Refused, ["A has 60 columns"]),
        (lambda: gather(a.float(), [b.float()], 0, name), mkernel.torch.Refused, ["torch.float32"]),
        (lambda: gather(a, [b.half()], 0, name), mkernel.InvalidArgument, ["B has dtype torch.float16"]),
        (lambda: reduce(a, b.cpu(), "sum", name), mkernel.InvalidArgument, ["B is on cpu", f"A on {a.device}"]),
        (lambda: reduce(a, b, "max", name), mkernel.InvalidArgument, ["'max'"]),
    ):
        with raises(kind, *words):
            broken()
    with mkernel.torch.options(sm_margin=1000):
        with raises(mkernel.InvalidArgument, "sms"):
            reduce(a, b, "sum", name)
    told = mkernel.torch.explain(gather, a, [b], 0, name)
    assert told.path == "mkernel" and "cuda" in told.operation and told.copies == (), told
    assert told.expected is None and not told.planned, told
    # Tensors in host memory go to the cpu executor of the same group.
    _, (c,) = gather(a.cpu(), [b.cpu()], 0, name, return_A=False)
    close(c, torch.cat(every(lambda rank: operand(1, rank, (64, 64)))) @ b.cpu().double())
    call(gather, a, [b], 0, name, return_A=False)
    told = mkernel.torch.explain(gather, a, [b], 0, name)
    assert told.planned and 1e-6 < told.expected < 1e-3 and "ms a launch" in str(told), told
    end()


def compiled():
    """opcheck, gradients, and Inductor's pass for asynchronous tensor parallelism."""
    import torch.distributed._functional_collectives as funcol
    import torch.distributed._symmetric_memory as symmetric
    from torch._inductor import config

    warnings.simplefilter("ignore")
    name = begin()
    a, weight = on_gpu(1, RANK, (18 * WORLD, 64)), on_gpu(3, RANK, (40, 64))
    for op, arguments, keywords in (
        (OPS.fused_all_gather_matmul, (a, [weight.t()], 0, name), {"return_A": False}),
        (OPS.fused_matmul_reduce_scatter, (a, weight.t(), "sum", 0, name), {}),
        (OPS.fused_matmul_all_reduce, (a, weight.t(), "avg", name), {}),
    ):
        call(op, *arguments, **keywords)
        with no_launches(), contextlib.suppress(Exception):  # it compares results, which there are none of
            torch.library.opcheck(op.default, arguments, keywords)
        meet()
        results = torch.library.opcheck(op.default, arguments, keywords)
        assert set(results.values()) == {"SUCCESS"}, (op, results)
    x, up, down = on_gpu(1, RANK, (256, 128)), on_gpu(2, RANK, (192, 128)), on_gpu(3, RANK, (128, 192))
    for tensor in (x, up, down):
        tensor.requires_grad_()

    def block(x, up, down):
        h = torch.relu(funcol.all_gather_tensor(x, 0, dist.group.WORLD) @ up.t())
        return funcol.reduce_scatter_tensor(h @ down.t(), "sum", 0, dist.group.WORLD)

    def fused(x, up, down):
        _, (h,) = OPS.fused_all_gather_matmul(x, [up.t()], 0, name, return_A=False)
        return OPS.fused_matmul_reduce_scatter(torch.relu(h), down.t(), "sum", 0, name)

    def gradients():
        for tensor in (x, up, down):
            tensor.grad = None
        (fused(x, up, down) * on_gpu(7, RANK, (256, 128))).sum().backward()
        return [tensor.grad for tensor in (x, up, down)]

    full = torch.cat([operand(1, rank, (256, 128)) for rank in range(WORLD)]).double()
    weights = [(operand(2, rank, (192, 128)).double(), operand(3, rank, (128, 192)).double()) for rank in range(WORLD)]
    hidden = [torch.relu(full @ u.t()) for u, _ in weights]
    parts = [h @ d.t() for h, (_, d) in zip(hidden, weights)]
    cotangent = torch.cat([operand(7, rank, (256, 128)) for rank in range(WORLD)]).double()
    of_x, of_up, of_down = (gradient.cpu() for gradient in call(gradients))
    backs = [(cotangent @ d) * (h > 0) for h, (_, d) in zip(hidden, weights)]
    wanted = sum(back @ u for back, (u, _) in zip(backs, weights))
    close(of_x, wanted.chunk(WORLD)[RANK], 192.0 * WORLD, 3)
    close(of_up, backs[RANK].t() @ full, 256.0 * WORLD, 3)
    close(of_down, cotangent.t() @ hidden[RANK], 256.0 * WORLD, 3)
    mkernel.torch.patch_symm_mem()
    with config.patch(_micro_pipeline_tp=True, compile_threads=1), torch.no_grad(), symmetric._test_mode():
        y = call(torch.compile(block, backend="inductor", fullgraph=True), x, up, down)
    close(y.cpu(), sum(parts).chunk(WORLD)[RANK], sum(p.abs() for p in parts).chunk(WORLD)[RANK] + 192.0, 3)
    counters = mkernel.torch.counters()
    assert not counters["fallbacks"], counters
    print(counters, flush=True)
    end()


def buffers():
    """symmetric_gpu() and register_gpu(): tensors over them, and puts from GPU to GPU."""
    torch.cuda.set_device(GPU)
    group = mkernel.connect(SOCKET, name="python test", device=GPU.index).join("buffers", WORLD, RANK)
    count, peer = 1 << 16, (RANK + 1) % WORLD
    source = (RANK - 1) % WORLD
    mine = torch.full((count,), RANK + 1, dtype=torch.int32, device=GPU)
    torch.cuda.synchronize()
    lane = group.reserve_lanes()
    for made in (group.symmetric_gpu(8 * count), group.register_gpu(torch.zeros(2 * count, dtype=torch.int32, device=GPU))):
        with made:
            both = torch.from_dlpack(made.view("i32"))
            assert both.device == GPU and both.numel() == 2 * count and not both.any()
            both[:count] = mine
            torch.cuda.synchronize()
            group.barrier()
            before = group.arrivals(source, lane)
            number = group.put(peer, lane, made, region=made.region, nbytes=4 * count, region_offset=4 * count)
            group.wait_arrival(source, lane, before + 1)
            group.wait_completed(peer, lane, number)
            assert torch.equal(both[count:], torch.full_like(mine, source + 1))
            del both
            group.barrier()
    group.barrier()
