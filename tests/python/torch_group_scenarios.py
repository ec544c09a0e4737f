"""Groups of mkernel.torch: how ranks agree, who is missing, and how ranks end."""
import datetime
import os
import sys
import threading
import time

from rank import raises, say, wait_for_test
from torch_rank import RANK, SOCKET, TIMEOUT, WORLD, close, dist, end, name_of, operand, start, torch

import mkernel.torch

OPS = torch.ops.mkernel


def call(name, world=WORLD, rank=RANK, rows=9):
    """One AllGather+GEMM whose rows are padded; checked."""
    b = operand(2, rank, (6, 4))
    _, (c,) = OPS.fused_all_gather_matmul(operand(1, rank, (rows, 6)), [b], 0, name, return_A=False)
    full = torch.cat([operand(1, other, (rows, 6)).double() for other in range(world)])
    close(c, full @ b.double())


def agreement():
    """Three ranks, of which some form further process groups."""
    init = mkernel.torch.init
    with raises(mkernel.FailedPrecondition, "init_process_group"):
        init()
    dist.init_process_group("gloo")
    name = name_of(None)
    with raises(mkernel.torch.NotInitialized, "mkernel.torch.init() was not called", "[0, 1, 2]"):
        call(name)
    missing(init)
    group = init(socket=SOCKET, timeout=TIMEOUT)
    assert init() is group and (group.rank, group.world_size) == (RANK, WORLD)
    call(name)
    # Another process group of the same ranks is the same group; one of some ranks is not, and only they call init.
    same, some = dist.new_group([0, 1, 2]), dist.new_group([0, 2])
    call(name_of(same))
    assert init(same) is group
    if RANK == 1:
        with raises(mkernel.InvalidArgument, "no member"):
            init(some, socket=SOCKET)
    else:
        with raises(mkernel.torch.NotInitialized, "[0, 2]"):
            call(name_of(some))
        assert init(some, socket=SOCKET, timeout=TIMEOUT).world_size == 2
        rank = dist.get_rank(some)
        call(name_of(some), 2, rank)
    call(name)
    mkernel.torch.shutdown(same)
    with raises(mkernel.torch.NotInitialized):
        call(name)
    if RANK != 1:
        call(name_of(some), 2, dist.get_rank(some))
    mkernel.torch.shutdown()
    with raises(mkernel.InvalidArgument, "lanes differs between ranks", "rank 0 has 8"):
        init(socket=SOCKET, lanes=8 + RANK, timeout=TIMEOUT)
    wrong_arguments(init)
    # One that has no daemon says so: the others once waited for it as long as they were ready to, which is longer than the test.
    with raises(mkernel.Unavailable, "/nowhere", *(["rank 1", "cannot come"] if RANK != 1 else [])):
        init(socket="/nowhere" if RANK == 1 else SOCKET, timeout=3600)
    init(socket=SOCKET, timeout=TIMEOUT)
    call(name)
    options_of_a_second_init(init)
    again(init)


def wrong_arguments(init):
    with raises(mkernel.InvalidArgument, "max_plans = 0"):
        init(max_plans=0)
    with raises(mkernel.Unavailable, "/nowhere"):
        init(socket=b"/nowhere")
    gpus = torch.cuda.device_count()
    for device in (gpus, *(() if gpus else ("cuda", "cuda:0", torch.device("cuda", 0)))):
        with raises(mkernel.InvalidArgument, "device", "PyTorch sees"):
            init(socket=SOCKET, device=device)
    for device in ("gpu0", "mps", torch.device("meta")):
        with raises(mkernel.InvalidArgument, "device = "):
            init(socket=SOCKET, device=device)
    options = mkernel.torch.set_options
    for field, wrongs in {"device": (True, 1.0, [0]), "lanes": (True, 8.0, "8"), "max_plans": (True, 1.5), "timeout": (True, "9", [1])}.items():
        for wrong in wrongs:
            with raises(TypeError, field):
                init(**{"socket": SOCKET, field: wrong})
    for field in ("process_group", "socket"):
        with raises(TypeError, field):
            init(**{field: 5})
    with raises(TypeError, "process_group is of type str"):
        mkernel.torch.shutdown("0")
    for field, wrongs in {"timeout": (True, "9"), "sm_margin": (True, 1.0), "compute_threads": (True, "1"), "buckets": (True, 4.0, None),
                          "check": (2, "no", None)}.items():
        for wrong in wrongs:
            with raises(TypeError, field):
                options(**{field: wrong})
    with mkernel.torch.options(timeout=datetime.timedelta(seconds=TIMEOUT), buckets=torch.tensor(4), check=0):
        assert mkernel.torch._options.current() == mkernel.torch.Options(timeout=TIMEOUT)
    for field, wrongs in {"in_features": (8.0, True), "out_features": ("8",), "bias": ("no",), "dim": (0.0,), "process_group": (5,)}.items():
        for wrong in wrongs:
            with raises(TypeError, field):
                mkernel.torch.nn.ColumnParallelLinear(**{"in_features": 8 * WORLD, "out_features": 8 * WORLD, field: wrong})


    for wrong, words in ((lambda: mkernel.torch.explain(5), "op = 5"), (lambda: mkernel.torch.patch_megatron("layers"), "layers = 'layers'"),
                         (lambda: mkernel.torch.nn.RowParallelLinear.from_linear(torch.ones(2, 2)), "linear is of type Tensor"),
                         (lambda: mkernel.torch.build(timeout="9"), "timeout"), (lambda: mkernel.torch.build(force="no"), "force"),
                         (lambda: mkernel.torch.LigerExpertParallelFusedMoe(max_tokens=True), "max_tokens = True"),
                         (lambda: mkernel.torch.get_symm_buffer_for_mega_moe(None, 2.0, 4, 1, 8, 8), "num_experts = 2.0"),
                         (lambda: mkernel.torch.ring_flash_attn.ring_flash_attn_func(*[torch.ones(1, 2, 1, 8)] * 3, window_size=5), "window_size = 5")):
        with raises(TypeError, words):
            wrong()


def options_of_a_second_init(init):
    """Those that are given must be those of the group; what differs is named. A mesh of one dimension is its process group."""
    mesh = dist.device_mesh.init_device_mesh("cpu", (WORLD,))
    for options in ({}, {"socket": SOCKET}, {"device": -1, "lanes": 64, "max_plans": 48}, {"device": torch.device("cpu"), "timeout": TIMEOUT},
                    {"process_group": mesh}):
        assert init(**options).world_size == WORLD
    for options, words in (({"socket": "/nowhere"}, ["socket = '/nowhere'", SOCKET]), ({"lanes": 8}, ["lanes = 8, and it has 64"]),
                           ({"max_plans": 3, "timeout": 5.0}, ["max_plans = 3, and it has 48; timeout = 5.0"])):
        with raises(mkernel.InvalidArgument, "other options", "shutdown()", *words):
            init(**options)


def missing(init):
    """A rank that does not come is named; ranks that wait for each other in different process groups hear of it at once."""
    if RANK < 2:
        with raises(mkernel.DeadlineExceeded, "ranks [0, 1, 2]", "missing: rank 2 (global 2);", "not within 3 s"):
            init(socket=SOCKET, timeout=3)
    dist.barrier()
    pair = dist.new_group([0, 1])
    begin = time.monotonic()
    words = ("differ between ranks", "[0, 1]", "[0, 1, 2]", "global rank 0", "global rank 1")
    if RANK == 0:
        with raises(mkernel.InvalidArgument, *words):
            init(pair, socket=SOCKET, timeout=TIMEOUT)
    elif RANK == 1:
        with raises(mkernel.InvalidArgument, *words):
            init(socket=SOCKET, timeout=TIMEOUT)
    assert time.monotonic() - begin < TIMEOUT / 2
    dist.barrier()


def again(init):
    """torch.distributed is destroyed and initialized once more, by another kind of store."""
    name = name_of(None)
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=f"file://{os.environ['STORE']}", rank=RANK, world_size=WORLD)
    assert name_of(None) == name
    with raises(mkernel.torch.NotInitialized):
        call(name)
    init(socket=SOCKET, timeout=TIMEOUT)
    call(name)
    end()


def late_rank():
    """A rank that calls too late: the call ends by its own limit, the group is over, and a new one can be made."""
    name = start()
    call(name)
    if RANK == 0:
        with mkernel.torch.options(timeout=1.0):
            with raises(mkernel.DeadlineExceeded, "ag_gemm", "rank 0"):
                call(name)
        with raises(mkernel.Error, "ag_gemm"):
            call(name)
    dist.barrier()
    mkernel.torch.shutdown()
    mkernel.torch.init(socket=SOCKET, timeout=TIMEOUT)
    call(name)
    end()


def interrupted():
    """Ctrl-C in a call that waits for rank 1. The launch goes on: the next calls of both ranks are right."""
    name = start()
    call(name)
    if RANK == 0:
        try:
            say("waiting")
            call(name)
        except KeyboardInterrupt:
            say("interrupted")
        else:
            raise AssertionError("the call returned")
    else:
        wait_for_test()
        call(name)
    for _ in range(3):
        call(name)
    end()


def two_groups_at_once():
    """Three ranks in one group, two of them in a second one: each group has a thread, and their calls run in any order."""
    name = start()
    pair = dist.new_group([0, 1])
    errors = []

    def calls(*arguments):
        try:
            for rows in (3, 17, 8, 18, 9, 3) * 5:
                call(*arguments, rows=rows)
        except BaseException as error:
            errors.append(error)

    if RANK < 2:
        mkernel.torch.init(pair, socket=SOCKET, timeout=TIMEOUT)
    threads = [threading.Thread(target=calls, args=(name,))]
    threads += [threading.Thread(target=calls, args=(name_of(pair), 2))] if RANK < 2 else []
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    end()


def daemon_restarts():
    """The daemon goes and comes back: the call says so, and shutdown() and init() make everything anew."""
    name = start()
    call(name)
    say("ready")
    sys.stdin.readline()  # until there is a new daemon
    with raises(mkernel.Unavailable):
        call(name)
    mkernel.torch.shutdown()
    mkernel.torch.init(socket=SOCKET, timeout=TIMEOUT)
    call(name)
    end()


def bereaved():
    """Rank 1 is killed while rank 0 is in a call."""
    name = start()
    call(name)
    say("waiting")
    if RANK == 1:
        wait_for_test()
    for _ in range(2):
        with raises(mkernel.Unavailable, "rank 1"):
            call(name)
    mkernel.torch.shutdown()
    os._exit(0)  # torch.distributed waits for the rank that is gone


def forked():
    name = start()
    call(name)
    child = os.fork()
    if child == 0:
        try:
            with raises(mkernel.torch.NotInitialized, "forked", "spawn"):
                call(name)
            mkernel.torch.shutdown()
        except BaseException as error:
            print(error, file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(17)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
    call(name)
    end()


def _refused_in_worker():
    name = start()
    OPS.fused_all_gather_matmul(torch.ones(4, 6), [torch.ones(6, 4)], 0, name)


def pool():
    """A worker of a process pool is refused: the pool reports it. An exception that cannot be rebuilt would end the pool's reader."""
    import multiprocessing

    with multiprocessing.get_context("fork").Pool(1) as workers:
        answer = workers.apply_async(_refused_in_worker)
        with raises(mkernel.torch.Refused, "A has dtype torch.float32") as expected:
            answer.get(TIMEOUT)
        assert expected.error.reason == "dtype torch.float32"


def exit_in_call():
    """The interpreter ends while a thread is in a call that waits for the other rank: nothing hangs, nothing crashes."""
    name = start()
    call(name)
    dist.barrier()
    if RANK == 0:
        thread = threading.Thread(target=call, args=(name,), daemon=True)
        thread.start()
        thread.join(0.5)  # not a synchronisation: most runs end inside the call
        assert thread.is_alive()
    else:
        wait_for_test()  # that rank 0 has ended: a wait for a rank that has left is over
    say("ends")


def exit_idle():
    """The interpreter ends with everything open."""
    name = start()
    call(name)
    dist.barrier()
