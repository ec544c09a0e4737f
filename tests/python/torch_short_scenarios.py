"""The short way of calls on tensors of a GPU (mkernel.torch._short), on tensors in host memory: what it asks of CUDA is stubbed, and a
launch that it queues runs at once on the cpu executor."""
import contextlib
import ctypes
import unittest.mock

from torch_rank import RANK, WORLD, close, counted, dist, end, operand, start, torch

import mkernel.torch
from mkernel._library import lib
from mkernel.torch import _extension, _groups, _short
from mkernel.torch._options import remembered

OPS = torch.ops.mkernel


_on_current_device = torch._C._dynamo.guards._empty_strided_cpu  # allocates as _short._empty() does on a GPU


@contextlib.contextmanager
def on_host(enqueue):
    """`enqueue`: of a GEMM operation, in place of the library's."""
    stubs = {"DEVICE": "cpu", "raw_stream": int, "_is_capturing": bool, "_enqueue": enqueue,  # int(-1) is the stream of no GPU
             "_empty": _on_current_device, "_current_device": lambda: -1, "extension": None}
    with contextlib.ExitStack() as stack:
        for field, stub in stubs.items():
            stack.enter_context(unittest.mock.patch.object(_short, field, stub))
        yield


@contextlib.contextmanager
def queued_by_extension(enqueue, is_capturing):
    """What is remembered meanwhile the extension queues with `enqueue`, the address of a C function, in place of the library's, and asks
    `is_capturing` in place of the CUDA driver."""
    def queue(description):
        description.enqueue, description.is_capturing = enqueue, is_capturing

    for membership in _groups._State.by_ranks.values():
        membership.lock.set_stream(0, 0)  # of tensors in host memory
    with unittest.mock.patch.object(_short, "is_queued", lambda _: True), unittest.mock.patch.object(_extension, "queue", queue):
        yield


class RunNow:
    """Counts the launches."""

    count = 0

    def __call__(self, handle, arguments, stream, options):
        assert isinstance(stream, ctypes.c_void_p)
        self.count += 1
        pending = ctypes.c_void_p()
        status = lib.mk_gemm_launch(handle, arguments, options, ctypes.byref(pending)) or lib.mk_pending_wait(pending, 0)
        lib.mk_pending_destroy(pending)
        return status


def gather(name, seed, dtype, columns, transposed, return_a):
    """One call with fresh operands; checked."""
    def of(rank):
        return operand(seed, rank, (4, 3, 16), dtype)

    bs = [operand(seed + 1 + index, RANK, (n, 16) if transposed else (16, n), dtype) for index, n in enumerate(columns)]
    bs = [b.t() if transposed else b for b in bs]
    full = torch.cat([of(rank) for rank in range(WORLD)])
    returned, results = OPS.fused_all_gather_matmul(of(RANK), bs, 0, name, return_A=return_a)
    assert torch.equal(returned, full) if return_a else returned is None
    assert len(results) == len(bs)
    for b, c in zip(bs, results):
        close(c, full.double() @ b.double())
        assert c.is_contiguous()


def gathers(name):
    """For every type and layout and every number of B that one launch multiplies, the widest in any place: a call of gather(), whose
    argument is added to the seed."""
    for dtype, transposed in ((torch.bfloat16, True), (torch.float16, False)):
        for columns in ((8,), (24, 8), (8, 24, 16), (8, 16, 40, 24)):
            for return_a in (False, True):
                yield lambda more, of=(dtype, columns, transposed, return_a): gather(name, 10 * len(of[1]) + more, *of)


def values():
    """Calls like one before take the short way, with any number of B that one launch multiplies, the widest in any place."""
    name = start()
    run_now = RunNow()
    with on_host(run_now):
        for call in gathers(name):
            call(0)
            for again in (100, 200):
                before = run_now.count
                changed = counted(lambda: call(again))
                assert changed == {"fused_all_gather_matmul": 1, "plans_hit": 1, "launches": 1}, changed
                assert run_now.count == before + 1, "the long way was taken"
        reduced(name, run_now)
        for elsewhere in ({"_empty": None}, {"_current_device": lambda: 3}):  # a PyTorch without it, and another current GPU
            with unittest.mock.patch.multiple(_short, **elsewhere):
                reduced(name, run_now, known=True)
                gather(name, 300, torch.bfloat16, (8, 24, 16), True, True)
        for_inference(name, run_now)
        counts(name)
        not_remembered(name, run_now)
    end()


def for_inference(name, run_now):
    """Results of inference mode are tensors of it, as those of other operators are."""
    a, b = operand(1, RANK, (4 * WORLD, 16)), operand(2, RANK, (16, 24))
    before = run_now.count
    for _ in range(2):
        with torch.inference_mode():
            assert OPS.fused_matmul_reduce_scatter(a, b, "sum", 0, name).is_inference()
        assert not OPS.fused_matmul_reduce_scatter(a, b, "sum", 0, name).is_inference()
    assert run_now.count == before + 4


def counts(name):
    """Calls of the short way and of the long one are counted together, and forgotten together."""
    a, b = operand(1, RANK, (4 * WORLD, 16)), operand(2, RANK, (16, 24))
    mkernel.torch.reset_counters()
    OPS.fused_matmul_all_reduce(a, b, "sum", name)
    OPS.fused_matmul_all_reduce(a, b, "avg", name)
    found = {field: count for field, count in mkernel.torch.counters().items() if count}
    assert found == {"fused_matmul_all_reduce": 2, "plans_hit": 2, "launches": 2}, found
    mkernel.torch.reset_counters()
    assert mkernel.torch.counters() == {"copies": {}, "fallbacks": {}}


def reduced(name, run_now, known=False):
    """`known`: the first calls are like some before, too."""
    for seed in (1, 2, 3):
        parts = [operand(seed, rank, (4 * WORLD, 16)).double() @ operand(seed + 9, rank, (16, 24)).double() for rank in range(WORLD)]
        terms = sum(part.abs() for part in parts)
        mine, before = (operand(seed, RANK, (4 * WORLD, 16)), operand(seed + 9, RANK, (16, 24))), run_now.count
        close(OPS.fused_matmul_reduce_scatter(*mine, "sum", 0, name), sum(parts).chunk(WORLD)[RANK], terms.chunk(WORLD)[RANK], 2)
        close(OPS.fused_matmul_all_reduce(*mine, "sum", name), sum(parts), terms, 2)
        assert run_now.count == before + (2 if known or seed > 1 else 0)


def not_remembered(name, run_now):
    """Too many B for one launch, B of two layouts, rows that are padded, operands that ask for gradients, and other options."""
    before = run_now.count
    for _ in range(2):
        gather(name, 50, torch.bfloat16, (8, 16, 24, 32, 40), False, False)
        a, b = operand(1, RANK, (4, 16)), operand(2, RANK, (16, 8))
        OPS.fused_all_gather_matmul(a, [b, operand(3, RANK, (8, 16)).t()], 0, name, return_A=False)
        OPS.fused_matmul_all_reduce(operand(1, RANK, (9, 16)), b, "sum", name)
        c = OPS.fused_matmul_all_reduce(a.clone().requires_grad_(), b, "avg", name)
        assert c.requires_grad
    assert run_now.count == before
    assert remembered
    with mkernel.torch.options(timeout=20.0):
        assert not remembered
    dist.barrier()
