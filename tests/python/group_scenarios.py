"""Groups, buffers, views and puts on ranks of their own."""
import fcntl
import gc
import os
import threading
import time

from rank import LONG, RANK, SOCKET, WORLD, join, raises

import mkernel


def groups():
    session = mkernel.connect(SOCKET)
    with session, session.join("one", WORLD, RANK, lanes=3, region_capacity=4) as group:
        assert (group.rank, group.world_size, group.lanes, group.device) == (RANK, WORLD, 3, -1)
        assert group.node_count == 2
        info = group.rank_info(RANK)
        assert info == (RANK // 2, RANK % 2, f"node{RANK // 2}"), info
        assert info.node_name == f"node{RANK // 2}"
        with raises(mkernel.OutOfRange, "rank 4", "4 ranks"):
            group.rank_info(WORLD)
        assert group.status() is None
        group.barrier()
        assert group.exchange(b"rank %d" % RANK) == [b"rank %d" % rank for rank in range(WORLD)]
        assert group.exchange(b"") == [b""] * WORLD
        most = bytes([RANK]) * 448
        assert group.exchange(most) == [bytes([rank]) * 448 for rank in range(WORLD)]
        with raises(mkernel.InvalidArgument, "449", "448"):
            group.exchange(bytes(449))
        # Ranks that differ are told so, by name, and the group goes on.
        with raises(mkernel.InvalidArgument, "rank 0", "rank 1" if RANK == 0 else ""):
            group.symmetric(4096 if RANK == 0 else 8192)
        assert group.status() is None
        other = session.join("two", WORLD, WORLD - 1 - RANK)  # two groups in one process, with other ranks
        assert other.rank == WORLD - 1 - RANK and group.rank == RANK
        assert other.exchange(bytes([RANK])) == [bytes([WORLD - 1 - rank]) for rank in range(WORLD)]
        with other.symmetric(64) as in_other, group.symmetric(64) as in_group:
            in_other.memoryview()[0], in_group.memoryview()[0] = 1, 2
            assert in_other.memoryview()[0] == 1 and in_group.memoryview()[0] == 2
        other.close()
        with raises(mkernel.FailedPrecondition, "group 'two' is closed"):
            other.barrier()
        group.barrier()
        group.barrier()
    with raises(mkernel.FailedPrecondition, "session is closed"):
        session.join("three", 1, 0)


def secret():
    session = mkernel.connect(SOCKET)
    with raises(mkernel.InvalidArgument, "31", "32"):
        session.join("secret", WORLD, RANK, secret=bytes(31))
    group = session.join("secret", WORLD, RANK, secret=bytes(range(32)))
    group.barrier()
    if RANK == 0:
        with raises(mkernel.DeadlineExceeded, "missing"):  # another group of this name, whose other ranks nobody starts
            session.join("secret", WORLD, RANK, secret=bytes(range(1, 33)), timeout=1)
    group.barrier()


def buffers():
    import numpy as np

    group = join()
    with group.symmetric(1 << 16) as buffer:
        assert (len(buffer), buffer.nbytes) == (1 << 16, 1 << 16)
        assert set(group.exchange(bytes([buffer.region]))) == {bytes([buffer.region])}
        view = buffer.memoryview()
        assert view.nbytes == 1 << 16 and not any(view) and not view.readonly
        floats = buffer.numpy("float32", (8, 16), offset=1024)
        floats[:] = np.arange(128, dtype=np.float32).reshape(8, 16) + 1000 * RANK
        assert np.frombuffer(view, np.float32, 128, 1024)[127] == 127 + 1000 * RANK
        group.barrier()
        for rank in range(WORLD):
            near = rank // 2 == RANK // 2
            assert buffer.is_mapped(rank) == near
            if near:
                assert buffer.numpy("float32", (8, 16), offset=1024, rank=rank)[7, 15] == 127 + 1000 * rank
                assert buffer.memoryview(rank=rank)[1024:1028] == np.float32(1000 * rank).tobytes()
            else:
                with raises(mkernel.FailedPrecondition, f"rank {rank}", f"node{rank // 2}"):
                    buffer.memoryview(rank=rank)
        with raises(mkernel.InvalidArgument, "rank = 4", "0..3"):
            buffer.memoryview(rank=WORLD)
        with raises(mkernel.OutOfRange, "65540", "65536"):
            buffer.view("f32", 16385)
        with raises(mkernel.InvalidArgument, "offset = 2", "4"):
            buffer.view("f32", 1, offset=2)
        with raises(mkernel.InvalidArgument, "dtype = 'f8'", "bf16"):
            buffer.view("f8", 1)
        # Out by DLPack, of the whole and of a view.
        out = np.from_dlpack(buffer.view("f32", (8, 16), offset=1024))
        assert out.shape == (8, 16) and out.dtype == np.float32 and out[0, 5] == 5 + 1000 * RANK
        assert np.from_dlpack(buffer).shape == (1 << 16,)
        unused = buffer.__dlpack__()  # nobody takes it
        assert buffer.__dlpack_device__() == (1, 0)
        del unused, out, floats, view
        group.barrier()
    # Views outlive the buffer, each kind alone.
    for view_of in (lambda b: b.numpy("uint16"), lambda b: np.from_dlpack(b.view("u16", 4)), lambda b: b.memoryview().cast("H")):
        buffer = group.symmetric(4096)
        buffer.memoryview()[:2] = b"\x07\x07"
        array = view_of(buffer)
        buffer.close()
        with raises(mkernel.FailedPrecondition, "closed"):
            buffer.memoryview()
        gc.collect()
        assert array[0] == 0x0707 and array[3] == 0
        del array
    own = group.host_buffer(4096)
    own.memoryview()[:] = b"x" * 4096
    with raises(mkernel.InvalidArgument, "rank"):
        own.memoryview(rank=RANK)
    memfd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(memfd, 8192)
    with raises(mkernel.Error):
        group.register_memory(memfd, 4096)  # not sealed
    fcntl.fcntl(memfd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    os.pwrite(memfd, b"hello", 4096)
    with group.register_memory(memfd, 4096, offset=4096) as registered:
        assert bytes(registered.memoryview()[:5]) == b"hello"
    os.close(memfd)
    with raises(mkernel.FailedPrecondition, "device"):
        group.symmetric_gpu(4096)
    with raises(mkernel.FailedPrecondition, "device"):
        group.register_gpu(4096, 4096)
    group.barrier()


def puts():
    group = join()
    right, left = (RANK + 1) % WORLD, (RANK - 1) % WORLD
    with group.symmetric((2 << 20) + 4096) as buffer, group.host_buffer(4096) as own, group.keep_active():
        half = 1 << 20
        lane = group.reserve_lanes(2)
        assert group.arrivals(left, lane) == 0
        view = buffer.memoryview()
        view[:half] = bytes([RANK + 1]) * half
        own.memoryview()[:] = b"%d" % RANK * 4096
        group.barrier()  # nobody puts before
        assert group.put(right, lane, buffer, region=buffer.region, region_offset=half, nbytes=half) == 1
        assert group.put(right, lane, own, region=buffer.region, region_offset=2 * half, nbytes=4096) == 2
        assert group.signal(right, lane) == 3
        assert group.signal(right, lane + 1) == 1
        group.wait_arrival(left, lane, 3, LONG)
        group.wait_arrival(left, lane + 1, 1, LONG)
        group.wait_completed(right, lane, 3, LONG)
        assert group.arrivals(left, lane) == 3
        assert (group.puts(right, lane), group.puts(right, lane + 1), group.puts(right, 0)) == (3, 1, 0)
        assert view[half] == view[2 * half - 1] == left + 1
        assert bytes(view[2 * half :]) == b"%d" % left * 4096
        for wrong, words in (
            ({"target": WORLD}, ["rank 4", "group 'test' of 4"]),
            ({"lane": 0}, ["lane 0", "not reserved"]),
            ({"offset": 2 * half}, ["offset 2097152", "2101248"]),
            ({"nbytes": (2 << 20) + 4097}, ["2101249", "2101248"]),
            ({"region_offset": 2 << 20}, ["offset 2097152", "has 2101248"]),
            ({"region": 200}, ["region 200", "64"]),
            ({"region": -1}, ["region = -1", "0..4294967295"]),
            ({"lane": 1 << 32}, ["lane = 4294967296", "0..4294967295"]),
        ):
            arguments = {"target": right, "lane": lane, "region": buffer.region, "nbytes": half + 1, **wrong}
            with raises((mkernel.InvalidArgument, mkernel.OutOfRange), *words):
                group.put(arguments.pop("target"), arguments.pop("lane"), buffer, **arguments)
        with raises(TypeError, "lane = 'x'"):
            group.signal(right, "x")
        with raises(mkernel.InvalidArgument, "target = -1"):
            group.puts(-1, lane)
        for wrong in (0, -1, 1e6):
            with raises(mkernel.InvalidArgument, f"signal: timeout = {wrong}"):
                group.signal(right, lane, timeout=wrong)
        with raises(TypeError, "put: timeout = 'soon'"):
            group.put(right, lane, own, region=buffer.region, nbytes=8, timeout="soon")
        assert group.puts(right, lane) == 3
        # A wait that gives up says so, and the group goes on.
        begin = time.monotonic()
        with raises(mkernel.DeadlineExceeded, "wait_arrival", "0.3 s", "4", "3", f"rank {left}"):
            group.wait_arrival(left, lane, 4, 0.3)
        assert 0.3 <= time.monotonic() - begin < 0.3 + LONG / 4
        with raises(TimeoutError):
            group.wait_completed(right, lane, 4, 0.01)
        with raises(mkernel.InvalidArgument, "timeout", "-1"):
            group.wait_arrival(left, lane, 4, -1)
        assert group.status() is None
        thread_error = []

        def in_thread():  # there are no slices in another thread
            try:
                group.wait_arrival(left, lane, 4, 0.2)
            except mkernel.DeadlineExceeded as error:
                thread_error.append(error)

        thread = threading.Thread(target=in_thread)
        thread.start()
        thread.join(LONG)
        assert len(thread_error) == 1
        group.barrier()
        del view
