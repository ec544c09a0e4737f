"""How ranks end: interrupted, killed, forked, with work in flight, handles destroyed in any order."""
import array
import atexit
import ctypes
import gc
import itertools
import os
import signal
import sys
import threading
import time

from rank import LONG, RANK, SOCKET, WORLD, join, raises, say, wait_for_line, wait_for_test

before_import = []  # runs at exit after what mkernel has registered
atexit.register(lambda: [call() for call in before_import])

import mkernel  # noqa: E402


def joined():
    """Rank 1 of the tests of waits: there, but silent."""
    group = join()
    with group.symmetric(64), group.gemm_ar(8, 8, 8, dtype="f16"):
        group.reserve_lanes(1)
        say("joined")
        wait_for_test()
        os._exit(0)


def interrupted():
    """Rank 0: waits for something that rank 1 never does, in the way that WAIT names."""
    session = mkernel.connect(SOCKET)
    wait = os.environ["WAIT"]
    if wait in ("connect", "join", "close"):
        group = None
    else:
        group = session.join("test", WORLD, RANK)
        buffer, operation = group.symmetric(64), group.gemm_ar(8, 8, 8, dtype="f16")
        lane = group.reserve_lanes(1)
        operands = [bytearray(128) for _ in range(3)]
        launch = operation.bind(*operands)
    if wait == "close":
        group = session.join("alone", 1, 0)
    pending = launch.launch() if wait in ("pending", "pending_with_timeout", "close_operation") else None
    calls = {
        "connect": lambda: mkernel.connect(SOCKET, timeout=LONG),  # the test has stopped the daemon
        "close": lambda: group.close(),
        "join": lambda: session.join("test", WORLD, RANK),
        "barrier": lambda: group.barrier(),
        "exchange": lambda: group.exchange(b"x"),
        "symmetric": lambda: group.symmetric(4096),
        "reserve_lanes": lambda: group.reserve_lanes(1),
        "operation": lambda: group.ag_gemm(8, 8, 8),
        "wait_arrival": lambda: group.wait_arrival(1, lane, 1, LONG),
        "wait_completed": lambda: group.wait_completed(1, lane, 1, LONG),
        "pending": lambda: pending.wait(),
        "pending_with_timeout": lambda: pending.wait(LONG),
        "run": lambda: launch.run(),
        "close_operation": lambda: operation.close(),
    }
    say("waiting")
    if wait in ("connect", "close"):
        sys.stdin.readline()  # until the daemon is stopped
        say("stopped")
    try:
        calls[wait]()
    except KeyboardInterrupt:
        say("interrupted")
        if wait == "barrier":  # what is left behind is named, and ended by fail()
            with raises(mkernel.FailedPrecondition, "barrier", "still under way"):
                group.exchange(b"x")
            group.fail("rank 0 was interrupted")
            with raises(mkernel.Error, "rank 0 was interrupted"):
                while True:
                    try:
                        group.barrier()
                    except mkernel.FailedPrecondition:
                        pass  # until the call that was left has seen the failure
        return
    raise AssertionError(f"{wait} returned")


def full_ring():
    """Alone, with a ring of 64 slots that nobody drains while the test has stopped the daemon."""
    group = join(timeout=LONG)
    lane = group.reserve_lanes(1)
    buffer = group.symmetric(128)
    buffer.memoryview()[:64] = b"x" * 64
    group.wait_arrival(0, lane, group.signal(0, lane), LONG)
    say("ready")
    wait_for_line()
    full = mkernel.DeadlineExceeded
    # The daemon may have been stopped before it gave back the slots of what came before.
    made = 1
    try:
        while True:
            made = group.signal(0, lane, timeout=0.1)
    except full:
        assert 56 <= made <= 65

    def put(**options):
        return group.put(0, lane, buffer, region=buffer.region, nbytes=64, region_offset=64, **options)

    def give_up():
        begin = time.monotonic()
        with raises(full, "put: not within 0.2 s", "room in the work ring"):
            put(timeout=0.2)
        assert 0.2 <= time.monotonic() - begin < LONG / 4
        with raises(full, "signal: not within 0.01 s"):
            group.signal(0, lane, timeout=0.01)

    give_up()
    failed = []
    thread = threading.Thread(target=lambda: failed.append(give_up()))  # there are no slices in another thread
    thread.start()
    thread.join(LONG)
    assert failed == [None]
    assert group.puts(0, lane) == made and group.status() is None
    for attempt, options in enumerate(({}, {"timeout": LONG})):
        say("full")
        try:
            put(**options)
        except KeyboardInterrupt:
            assert group.puts(0, lane) == made, "an interrupted put was made"
            say("interrupted")
        else:
            raise AssertionError(f"attempt {attempt}: there was room")
        wait_for_line()
    say("goes on")  # the test lets the daemon go on while this waits
    assert put() == made + 1
    group.wait_arrival(0, lane, made + 1, LONG)
    group.wait_completed(0, lane, made + 1, LONG)
    assert bytes(buffer.memoryview()[64:]) == b"x" * 64
    assert group.arrivals(0, lane) == group.puts(0, lane) == made + 1


def unhandled():
    """Rank 0: a barrier that Ctrl-C ends, and with it the program."""
    group = join()
    kept = group.symmetric(64), group.gemm_ar(8, 8, 8, dtype="f16"), group.reserve_lanes(1)  # noqa: F841: as rank 1
    say("waiting")
    group.barrier()


def bereaved():
    """Waits in the way that WAIT names until rank 3 is killed: the exception says so."""
    group = join()
    lane = group.reserve_lanes(1)
    operation = group.gemm_ar(8, 8, 8, dtype="f16")
    group.barrier()
    say("waiting")
    if RANK == WORLD - 1:
        wait_for_test()
    words = ["rank 3", "node1"]
    with raises(mkernel.Unavailable, *words):
        wait = os.environ["WAIT"]
        if wait == "barrier":
            group.barrier()
        elif wait == "wait_arrival":
            group.wait_arrival(WORLD - 1, lane, 1, LONG)
        else:
            operation.run(*(bytearray(128) for _ in range(3)))
    error = group.status()
    assert isinstance(error, mkernel.Unavailable) and all(word in str(error) for word in words), error
    with raises(mkernel.Unavailable, *words):
        group.barrier()


def time_limits():
    """Rank 0 of two; rank 1 comes too late or not at all."""
    session = mkernel.connect(SOCKET)
    with raises(mkernel.DeadlineExceeded, "rank 1"):
        session.join("alone", WORLD, RANK, timeout=0.3)
    group = session.join("test", WORLD, RANK, timeout=20)
    lane = group.reserve_lanes(1)
    operation = group.gemm_ar(8, 8, 8, dtype="f16")
    pending = operation.launch(*(bytearray(128) for _ in range(3)), deadline=1.5)
    with raises(mkernel.DeadlineExceeded, "not within 0.1 s", "goes on"):
        pending.wait(0.1)
    assert not pending.done() and group.status() is None
    # The launch's own limit, which fails the group with the same code as a slice that is over.
    begin = time.monotonic()
    with raises(mkernel.DeadlineExceeded, "gemm_ar", "rank 0"):
        pending.wait()
    assert time.monotonic() - begin < LONG / 2
    begin = time.monotonic()
    with raises(mkernel.DeadlineExceeded, "gemm_ar"):
        group.wait_arrival(1, lane, 1, LONG)
    assert time.monotonic() - begin < LONG / 2
    with raises(mkernel.DeadlineExceeded):
        group.barrier()


def late():
    """Rank 1 of the same: joins, plans, and then does nothing."""
    group = join(timeout=20)
    group.reserve_lanes(1)
    operation = group.gemm_ar(8, 8, 8, dtype="f16")  # noqa: F841: lives until the test is over
    wait_for_test()


def forked():
    group = join()
    buffer, operation = group.symmetric(64), group.gemm_ar(8, 8, 8, dtype="f16")
    operands = [bytearray(128) for _ in range(3)]
    launch = operation.bind(*operands)
    pending = launch.launch()
    child = os.fork()
    if child == 0:
        refused = mkernel.FailedPrecondition
        with raises(refused, "fork"):
            group.barrier()
        with raises(refused, "fork"):
            launch.launch()
        with raises(refused, "fork"):
            pending.wait()
        with raises(refused, "fork"):
            group.symmetric(64)
        assert group.rank == RANK
        del buffer, operation, pending, launch
        group.close()
        own = mkernel.connect(SOCKET).join(f"child of {RANK}", 1, 0)
        own.barrier()
        own.close()
        sys.exit(17)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
    pending.wait(LONG)
    launch.run(LONG)
    buffer.memoryview()[0] = 1
    group.barrier()


def exit_with_work():
    """Ends with a launch in flight whose operands are large arrays: nothing hangs, nothing crashes."""
    import numpy as np

    group = join(session=mkernel.connect(SOCKET))
    operation = group.gemm_ar(1536, 1536, 1536, dtype="f16")
    operands = [np.ones((1536, 1536), np.float16) for _ in range(3)]
    pending = operation.launch(*operands)
    group.barrier()  # a launch after the other rank has ended would fail
    if os.environ["KEEP"] == "nothing":
        del operands
    elif os.environ["KEEP"] == "pending":
        globals()["kept"] = pending, operands
    say("launched")


def exit_with_thread():
    """Ends while a thread is inside a collective call that rank 1 never makes, and with a launch in flight."""
    group = join()
    kept = group.symmetric(64), group.gemm_ar(8, 8, 8, dtype="f16"), group.reserve_lanes(1)
    globals()["kept"] = kept, kept[1].launch(*(bytearray(128) for _ in range(3)))
    threading.Thread(target=group.barrier, daemon=True).start()
    say("waiting")
    time.sleep(0.2)  # lets the thread come into the call


def exit_idle():
    """Rank 0 ends without closing anything, as many scripts do: it leaves the group, and what it has put arrives."""
    group = join()
    lane = group.reserve_lanes(1)
    buffer = group.symmetric(64)
    group.barrier()
    if RANK == 0:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object((group, buffer)))  # as an extension module might: no reference ever goes
        group.signal(1, lane)
        group.wait_completed(1, lane, 1, LONG)
        return
    group.wait_arrival(0, lane, 1, LONG)
    with raises(mkernel.Error, "rank 0", "left"):
        group.barrier()


class Last:
    """Makes its call when the interpreter clears the modules, and prints what came of it."""

    def __init__(self, name, call):
        self.name, self.call, self.write = name, call, os.write

    def __del__(self):
        try:
            said = f"{self.call()}"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        self.write(1, f"{self.name}: {said}\n".encode())


def finalizers():
    """Calls that finalizers and functions of atexit make after the handles have ended. BESIDE "a thread": one lives, so they have not
    been ended, and are left to the process; "atexit": a function that runs before they end makes the calls, too."""
    session, connect = mkernel.connect(SOCKET), mkernel.connect
    group = session.join("test", 1, 0)
    buffer, operation = group.symmetric(64), group.gemm_ar(8, 8, 8, dtype="f16")
    lane = group.reserve_lanes(1)
    pending = operation.launch(*(bytearray(128) for _ in range(3)))
    calls = {"wait": pending.wait, "operation": operation.close, "buffer": buffer.close, "barrier": group.barrier,
             "arrival": lambda: group.wait_arrival(0, lane, 1, LONG), "group": group.close, "session": session.close,
             "connect": lambda: connect(SOCKET).close()}
    for module in (sys.modules["__main__"], sys.modules[__name__]):
        module.last = [Last(name, call) for name, call in calls.items()]
    group.signal(0, lane)
    if os.environ["BESIDE"] == "atexit":
        atexit.register(lambda: [Last(name, call) and None for name, call in calls.items()])
    if os.environ["BESIDE"] == "a thread":
        threading.Thread(target=time.sleep, args=(LONG,), daemon=True).start()
    pending.wait()
    before_import.append(lambda: [Last(name, call) for name, call in calls.items()].clear())


def nameless():
    """Sessions of programs of odd names, one after the other, which are not given a name of their own."""
    name = ctypes.c_char_p.in_dll(ctypes.CDLL(None), "program_invocation_short_name")
    for program in (b"trainer", "train\u00e4r".encode(), b"tr\xff", b"a\nb", b"n" * 63, b"n" * 64, b"n" * 63 + b"m", b""):
        name.value = program
        session = mkernel.connect(SOCKET)
        say("connected")
        wait_for_line()
        session.close()


def stranger():
    """Another user, whom CASE keeps out: by the socket's group, by a socket of root, or by a folder."""
    import grp
    import pwd

    case, folder, user = os.environ["CASE"], os.environ["FOLDER"], pwd.getpwnam("nobody")
    jobs = grp.getgrnam("users")
    os.chmod(folder, 0o700 if case == "folder" else 0o755)
    os.chmod(SOCKET, 0o660)
    os.chown(SOCKET, 0, jobs.gr_gid if case == "group" else 0)
    parent = os.path.dirname(SOCKET)
    if case != "folder":
        os.chmod(parent, 0o755)
    os.setgroups([])
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)
    words = {
        "group": ["socket " + SOCKET, "of user root and group users with mode 0660", "join group users (usermod -aG users nobody)"],
        "root": ["socket " + SOCKET, "of user root and group root", "node.socket_group"],
        "folder": [f"folder {folder} is of user root", "with mode 0700"],
    }
    with raises(mkernel.PermissionDenied, f"this process is user nobody in group {grp.getgrgid(user.pw_gid).gr_name}", *words[case]):
        mkernel.connect(SOCKET)


def any_order():
    """Every order in which the handles of one process can go, by close() and by their last reference."""
    session = mkernel.connect(SOCKET)
    for by_close in (True, False):
        for number, order in enumerate(itertools.permutations(range(5))):
            group = session.join(f"group {number} {by_close}", 1, 0)
            operation = group.gemm_ar(8, 8, 8, dtype="f16")
            launch = operation.bind(*(bytearray(128) for _ in range(3)))
            handles = [group, operation, group.symmetric(64), group.host_buffer(64), launch.launch()]
            del group, operation, launch
            for index in order:
                if by_close and hasattr(handles[index], "close"):
                    handles[index].close()
                    handles[index].close()
                handles[index] = None
    # The session first, and everything through a cycle that only the collector finds.
    group = session.join("last", 1, 0)
    cycle = [session, group, group.symmetric(64)]
    cycle.append(cycle)
    session.close()
    group.barrier()
    del session, group, cycle
    gc.collect()
    # Closed by one thread under the wait of another.
    group = mkernel.connect(SOCKET).join("threads", 1, 0)
    lane = group.reserve_lanes(1)
    errors = []

    def wait():
        try:
            group.wait_arrival(0, lane, 1, 0.5)
        except mkernel.Error as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    group.close()
    thread.join(LONG)
    assert len(errors) == 1, errors


def operands_in_flight():
    """The operation keeps what its launches use, and closing it waits for them."""
    import weakref

    import numpy as np

    group = join()
    operation = group.gemm_ar(512, 512, 512, dtype="f16")
    operands = [np.ones((512, 512), np.float16) for _ in range(2)]
    c = np.zeros((512, 512), np.float16)
    for _ in range(20):
        operation.launch(*(x.copy() for x in operands), c)
    pending = operation.launch(*operands, c)
    watched = weakref.ref(operands[0])
    del operands
    assert watched() is not None
    operation.close()
    assert pending.done()
    assert (c == 512 * WORLD).all()
    del pending
    assert watched() is None


def threads_and_signals():
    """A handler of the program's own runs during a wait, which goes on: without what the handler does no wait here would end."""
    group = join()
    lane = group.reserve_lanes(1)
    if RANK == 0:
        signal.signal(signal.SIGUSR1, lambda *_: group.signal(1, lane))
        for wait in (lambda: group.wait_arrival(1, lane, 1, LONG), group.barrier):
            threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
            wait()
    else:
        group.wait_arrival(0, lane, 1, LONG)
        group.signal(0, lane)
        group.wait_arrival(0, lane, 2, LONG)
        group.barrier()


def leave_in_the_way_that_how_names():
    """A rank that has done its part ends: HOW says in which way."""
    how = os.environ["HOW"]
    if how == "_exit":
        os._exit(0)
    threading.Thread(target=threading.Event().wait, daemon=True).start()  # a progress bar, metrics
    if how == "SystemExit":
        sys.exit(0)


def last_step():
    """Rank 3 has done its part and ends while ranks 0 and 1 wait for rank 2. All go on; what needs more of rank 3 ends at once."""
    group = join()
    lane = group.reserve_lanes(1)
    if RANK == 3:
        for rank in (0, 1):
            group.signal(rank, lane)
            group.wait_completed(rank, lane, 1, LONG)
        return leave_in_the_way_that_how_names()
    if RANK == 2:
        say("joined")
        wait_for_line()
        while os.environ["HOW"] == "_exit" and group.status() is None:
            time.sleep(0.01)
        for rank in (3, 0, 1):  # the first goes nowhere, and counts as completed
            group.signal(rank, lane)
            group.wait_completed(rank, lane, 1, LONG)
        return
    group.wait_arrival(3, lane, 1, LONG)
    group.wait_arrival(2, lane, 1, LONG)
    with raises(mkernel.Unavailable, "rank 3"):
        group.wait_arrival(3, lane, 2, 3600)


def last_launch():
    """GEMM+RS in which rank 0, with one thread and the least priority, is late: rank 1 has its result, and ends."""
    group = join()
    m, n, k = 512, 1024, 2048  # k of each rank
    if RANK == 0:
        os.nice(19)
    exponents = [row % 4 for row in range(m)]
    a = array.array("H", itertools.chain.from_iterable([0x3f80 + (e << 7)] * k for e in exponents))  # bf16 2^e
    b = array.array("H", [0x3f80] * (k * n))
    rows = m // WORLD
    c = array.array("H", [0xffff] * (rows * n))
    operation = group.gemm_rs(m, n, k)
    operation.run(memoryview(a).cast("B"), memoryview(b).cast("B"), memoryview(c).cast("B"), deadline=LONG, compute_threads=1,
                  timeout=4 * LONG)
    wanted = array.array("H", itertools.chain.from_iterable([0x4580 + (e << 7)] * n for e in exponents[RANK * rows :][:rows]))  # 2 k 2^e
    assert c == wanted
    say("OK")
    if RANK == 1:
        leave_in_the_way_that_how_names()


def crosswise():
    """Ranks launch two operations of one shape in another order: both read where the other one is."""
    group = join()
    first, second = group.ag_gemm(8, 8, 8, dtype="f16"), group.ag_gemm(8, 8, 8, dtype="f16")
    operands = [bytearray(64), bytearray(128), bytearray(128)]
    first.run(*operands, timeout=LONG)
    words = ("rank 0 is in launch 2, operation 1, ag_gemm m=8", "rank 1 is in launch 2, operation 2, ag_gemm m=8")
    with raises(mkernel.Error, *words):
        (first, second)[RANK].run(*operands, deadline=1.0, timeout=LONG)


def rejected():
    """Operands that one rank refuses: the others hear of it at once. Ranks that all refuse theirs go on."""
    group = join()
    operation = group.gemm_ar(8, 8, 8, dtype="f16")
    operands = [bytearray(128) for _ in range(3)]
    for _ in range(2):
        with raises(mkernel.InvalidArgument, "bytes"):
            operation.run(bytearray(126), *operands[1:])
        operation.run(*operands, timeout=LONG)
    group.barrier()  # a failure ends every launch that is under way
    if RANK == 1:
        with raises(mkernel.InvalidArgument, "bytes"):
            operation.run(bytearray(126), *operands[1:])
    else:
        with raises(mkernel.InvalidArgument, "rank 1", "rejected launch 5", "bytes"):
            operation.run(*operands, deadline=600.0)
    while group.status() is None:
        time.sleep(0.01)


kept = []  # to the end of the process, as what a program has in its modules


def ends_with_a_thread():
    """Rank 1 has done its part and ends while a thread of it lives: rank 0, which waits for rank 2, does not notice."""
    group = join()
    kept.append(group)
    lane = group.reserve_lanes(1)
    if RANK == 1:
        group.signal(0, lane)
        threading.Thread(target=threading.Event().wait, daemon=True).start()  # a progress bar, metrics
        if os.environ["HOW"] == "SystemExit":
            sys.exit(0)
    elif RANK == 2:
        say("joined")
        wait_for_line()
        group.signal(0, lane)
        group.wait_completed(0, lane, 1, LONG)
    elif RANK == 0:
        group.wait_arrival(1, lane, 1, LONG)
        group.wait_arrival(2, lane, 1, LONG)
        assert group.status() is None
    else:
        wait_for_test()


def another_call():
    """One rank launches, the other makes an operation of another shape: it reads where both are."""
    group = join()
    operation, operands = group.ag_gemm(8, 8, 8, dtype="f16"), [bytearray(64), bytearray(128), bytearray(128)]
    if RANK == 0:
        with raises(mkernel.DeadlineExceeded, "rank 0 is in launch 1, operation 1, ag_gemm m=8"):
            operation.run(*operands, deadline=1.0, timeout=LONG)
    else:
        with raises(mkernel.DeadlineExceeded, "rank 0 is in launch 1, operation 1, ag_gemm m=8", "rank 1 is in a collective call",
                    "ag_gemm m=16"):
            group.ag_gemm(16, 8, 8, dtype="f16")
