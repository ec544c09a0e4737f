"""Calls like one before that the extension in C++ takes (mkernel.torch._extension), and those that it must leave to Python."""
import ctypes
import os
import sys
import threading

from rank import raises, say, wait_for_test
from torch_rank import RANK, SOCKET, TIMEOUT, WORLD, close, counted, dist, end, name_of, operand, start, torch
from torch_short_scenarios import RunNow, gathers, queued_by_extension

import mkernel.torch
from mkernel import _abi
from mkernel.torch import _extension

OPS = torch.ops.mkernel
GATHER, SCATTER, REDUCE = _extension.KINDS


def taken(call):
    """How many calls of `call` the extension took."""
    before = sum(_extension.extension.taken().values())
    call()
    return sum(_extension.extension.taken().values()) - before


def reduced(name, seed, dtype=torch.bfloat16, rows=4):
    """One call of each with fresh operands; checked."""
    def product(rank):
        return operand(seed, rank, (rows * WORLD, 16), dtype).double() @ operand(seed + 9, rank, (16, 24), dtype).double()

    parts = [product(rank) for rank in range(WORLD)]
    terms = sum(part.abs() for part in parts)
    a, b = operand(seed, RANK, (rows * WORLD, 16), dtype), operand(seed + 9, RANK, (16, 24), dtype)
    close(OPS.fused_matmul_reduce_scatter(a, b, "sum", 0, name), sum(parts).chunk(WORLD)[RANK], terms.chunk(WORLD)[RANK], 2)
    close(OPS.fused_matmul_all_reduce(a, b, "sum", name), sum(parts), terms, 2)


def check_values(name):
    """With any number of B that one launch multiplies, the widest in any place."""
    for call in gathers(name):
        call(0)
        changed = counted(lambda: call(100))
        assert changed == {GATHER: 1, "plans_hit": 1, "launches": 1}, changed
        assert taken(lambda: call(200)) == 1
    reduced(name, 1)
    for seed in (2, 3):
        assert taken(lambda: reduced(name, seed)) == 2
    changed = counted(lambda: reduced(name, 4))
    assert changed == {SCATTER: 1, REDUCE: 1, "plans_hit": 2, "launches": 2}, changed


def values():
    """The extension takes calls like one before, also in inference mode and without gradients."""
    name = start()
    check_values(name)
    a, b = operand(1, RANK, (4 * WORLD, 16)), operand(2, RANK, (16, 24))
    for mode in (torch.inference_mode, torch.no_grad):
        with mode():
            assert taken(lambda: reduced(name, 5)) == 2
            c = OPS.fused_matmul_reduce_scatter(a, b, "sum", 0, name)
            assert c.is_inference() == (mode is torch.inference_mode)
            asking = torch.nn.Parameter(b)
            assert taken(lambda: OPS.fused_matmul_reduce_scatter(a, asking, "sum", 0, name)) == 1
    mkernel.torch.reset_counters()
    reduced(name, 6)
    OPS.fused_matmul_all_reduce(a, b, "avg", name)
    found = {field: count for field, count in mkernel.torch.counters().items() if count}
    assert found == {SCATTER: 1, REDUCE: 2, "plans_hit": 3, "launches": 3}, found
    mkernel.torch.reset_counters()
    assert mkernel.torch.counters() == {"copies": {}, "fallbacks": {}}
    left_to_python(name, a, b)
    forgotten(name)
    end()


def left_to_python(name, a, b):
    """Another shape, type, layout, dimension, operation or group; padded rows; operands that ask for gradients."""
    same = name_of(dist.new_group(list(range(WORLD))))  # the same group under another name
    wide, strided = operand(2, RANK, (16, 40)), operand(2, RANK, (32, 24))[::2]
    calls = [lambda: OPS.fused_matmul_all_reduce(a, wide, "sum", name), lambda: OPS.fused_matmul_all_reduce(a, b.t().contiguous().t(), "sum", name),
             lambda: OPS.fused_matmul_all_reduce(a.view(2, -1, 16), b, "sum", name),
             lambda: OPS.fused_matmul_all_reduce(a.half(), b.half(), "sum", name), lambda: OPS.fused_matmul_all_reduce(a, b, "sum", same)]
    for call in calls:
        assert taken(call) == 0 and taken(call) == 1
    asking = b.clone().requires_grad_()
    never = [lambda: OPS.fused_matmul_all_reduce(a, b, "avg", name), lambda: OPS.fused_matmul_all_reduce(a, strided, "sum", name),
             lambda: OPS.fused_all_gather_matmul(a.view(2, -1, 16), [b], 1, name),
             lambda: OPS.fused_matmul_all_reduce(operand(1, RANK, (9, 16)), b, "sum", name)]
    for call in never:
        assert taken(lambda: [call(), call()]) == 0
    for _ in range(2):
        c = OPS.fused_matmul_all_reduce(a, asking, "sum", name)
        assert c.requires_grad and torch.equal(c, OPS.fused_matmul_all_reduce(a, b, "sum", name))
    c.sum().backward()
    close(asking.grad, a.double().t() @ torch.ones(4 * WORLD, 24, dtype=torch.double), 1, 2)


def forgotten(name):
    """Other options, and a process group that is gone."""
    with mkernel.torch.options(timeout=20.0):
        assert taken(lambda: reduced(name, 7)) == 0 and taken(lambda: reduced(name, 8)) == 2
    assert taken(lambda: reduced(name, 7)) == 0 and taken(lambda: reduced(name, 8)) == 2
    with mkernel.torch.options(check=True):
        assert taken(lambda: [reduced(name, 7), reduced(name, 8)]) == 0
    reduced(name, 7)
    kept = dist.group.WORLD  # so that only its end can tell
    dist.barrier()
    dist.destroy_process_group()
    with raises(mkernel.NotFound, "c10d knows no such process group"):
        reduced(name, 8)
    os.environ["MASTER_PORT"] = os.environ["OTHER_PORT"]
    dist.init_process_group("gloo")
    assert name_of(None) == name and dist.group.WORLD is not kept
    with raises(mkernel.torch.NotInitialized):
        reduced(name, 8)
    mkernel.torch.init(socket=SOCKET, timeout=TIMEOUT)
    check_values(name)


def queued():
    """What is queued on a stream, as on a GPU: the library's function is stubbed, and runs the launch at once on the cpu executor."""
    name = start()
    run_now = RunNow()
    capturing = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))
    status = []

    def is_capturing(_, found):
        found[0] = status[0] if status else 0
        return 0

    enqueue = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(
        lambda handle, arguments, stream, options: run_now(handle, ctypes.cast(arguments, ctypes.POINTER(_abi.GemmArguments)),
                                                           ctypes.c_void_p(stream), ctypes.cast(options, ctypes.POINTER(_abi.LaunchOptions))))
    asked = capturing(is_capturing)
    with queued_by_extension(_extension.address_of(enqueue), _extension.address_of(asked)):
        check_values(name)
        count = run_now.count
        assert taken(lambda: reduced(name, 5)) == 2 and run_now.count == count + 2
        status.append(1)
        assert taken(lambda: reduced(name, 5)) == 0, "a graph captures the stream"
        status.clear()
        a, b = operand(1, RANK, (4 * WORLD + 1, 16)).flatten()[4:-12].view(4 * WORLD, 16), operand(2, RANK, (16, 24))
        assert taken(lambda: OPS.fused_matmul_all_reduce(a, b, "sum", name)) == 0, "it begins within 16 bytes"
        lock = next(iter(mkernel.torch._groups._State.by_ranks.values())).lock
        lock.set_stream(7, 0)
        assert taken(lambda: reduced(name, 5)) == 0, "the launch before was on another stream"
        lock.set_stream(0, 0)
        assert taken(lambda: reduced(name, 5)) == 2
    end()


def plans():
    """The plan that goes is the one not used for longest, whoever took its calls."""
    name = start(max_plans=3)
    a, bs = operand(1, RANK, (4, 16)), {columns: operand(2, RANK, (16, columns)) for columns in (8, 16, 24, 32)}

    def call(columns):
        return OPS.fused_matmul_all_reduce(a, bs[columns], "sum", name)

    for columns in (8, 16, 24):
        call(columns)
    assert taken(lambda: [call(24), call(8)]) == 2
    changed = counted(lambda: call(32))
    assert changed["plans_evicted"] == 1, changed
    planned = [columns for columns in bs if mkernel.torch.explain(REDUCE, a, bs[columns], "sum", name).planned]
    assert planned == [8, 24, 32], planned
    for columns in (16, 8, 24, 32, 16):  # each makes its plan anew, and another one goes
        assert taken(lambda: call(columns)) == 0
        assert taken(lambda: call(columns)) == 1
    end()


def threads():
    """Threads of one process whose calls the extension and Python take at the same time, in two groups."""
    name = start()
    alone = dist.new_group([0])
    mkernel.torch.init(alone, socket=SOCKET, timeout=TIMEOUT)
    errors, rows = [], {name: (4, 4, 9), name_of(alone): (8, 8, 8)}

    def calls(group, seed):
        a = {count: operand(seed, RANK, (count, 16)) for count in (4, 8, 9)}
        b = operand(seed + 1, RANK, (16, 8))
        wanted = {count: a[count].double() @ b.double() for count in a}
        try:
            for count in rows[group] * 40:
                close(OPS.fused_matmul_all_reduce(a[count], b, "sum", group), wanted[count], wanted[count].abs(), 2)
                if seed == 1 and count == 9:
                    mkernel.torch.set_options(timeout=30.0)  # forgets all calls
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=calls, args=(group, seed)) for group in rows for seed in (1, 2, 3)]
    assert taken(lambda: [worker.start() for worker in workers] + [worker.join() for worker in workers]) > 100
    assert not errors, errors
    end()


def failing():
    """A rank that calls too late: the exceptions of the call, and of the calls after it, are those of Python."""
    name = start()
    b = operand(2, RANK, (16, 8))

    def call():
        OPS.fused_all_gather_matmul(operand(1, RANK, (4, 16)), [b], 0, name)

    with mkernel.torch.options(timeout=1.0):
        call()
        assert taken(call) == 1
        if RANK == 0:
            with raises(mkernel.DeadlineExceeded, "ag_gemm", "rank 0"):
                call()
            for _ in range(2):
                with raises(mkernel.Error, "ag_gemm"):
                    call()
    dist.barrier()
    mkernel.torch.shutdown()
    with raises(mkernel.torch.NotInitialized):
        call()
    mkernel.torch.init(socket=SOCKET, timeout=TIMEOUT)
    check_values(name)
    forked(call)
    end()


def forked(call):
    child = os.fork()
    if child == 0:
        try:
            with raises(mkernel.torch.NotInitialized, "forked", "spawn"):
                call()
        except BaseException as error:
            print(error, file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(17)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
    call()
    assert taken(call) == 1


def interrupted():
    """Ctrl-C in a call that waits for rank 1. The launch goes on: the next calls of both ranks are right."""
    name = start()
    reduced(name, 1)
    if RANK == 0:
        say("waiting")
        with raises(KeyboardInterrupt):
            reduced(name, 2)
        say("interrupted")
    else:
        wait_for_test()
        OPS.fused_matmul_reduce_scatter(operand(2, RANK, (4 * WORLD, 16)), operand(11, RANK, (16, 24)), "sum", 0, name)
    assert taken(lambda: reduced(name, 3)) == 2
    end()
