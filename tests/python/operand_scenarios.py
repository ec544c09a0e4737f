"""Operands and shapes of operations that are refused, and arguments of every call, on ranks of their own."""
import ctypes
import datetime
import math
import pathlib

import numpy as np
from rank import LONG, RANK, SOCKET, WORLD, join, raises

import mkernel


class Foreign:
    """An object that has nothing but __dlpack__."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class OnGpu:
    """What a GPU's array says about itself."""

    def __init__(self, address, shape, typestr):
        self.__cuda_array_interface__ = {"data": (address, False), "shape": shape, "typestr": typestr, "version": 3}


def bad_operands():
    """Operands and shapes that are refused here, so that the group goes on."""
    group = join()
    m, n, k = 8, 4, 6
    rows = mkernel.block_range(m, WORLD, RANK)
    with raises(mkernel.InvalidArgument, "dtype = 'f32'", "bf16, f16"):
        group.ag_gemm(m, n, k, dtype="f32")
    with raises(mkernel.InvalidArgument, "b_layout = 'C'", "row_major"):
        group.ag_gemm(m, n, k, b_layout="C")
    with raises(mkernel.InvalidArgument, "executor = 'gpu'", "cuda"):
        group.ag_gemm(m, n, k, executor="gpu")
    with raises(TypeError, "m = 8.5"):
        group.ag_gemm(8.5, n, k)
    with raises(mkernel.InvalidArgument, "m = -8"):
        group.ag_gemm(-8, n, k)
    with raises(mkernel.InvalidArgument, "rank 1"):
        group.ag_gemm(m + RANK % 2, n, k)
    with raises(mkernel.FailedPrecondition, "device = -1"):
        group.ag_gemm(m, n, k, executor="cuda")
    with raises(mkernel.InvalidArgument, "kv_heads"):
        group.ring_attention(batch=1, sequence=8, heads=3, kv_heads=2, head_dim=32)
    operation = group.ag_gemm(m, n, k)
    a, b, c = (np.zeros(shape, np.uint16) for shape in ((rows[1] - rows[0], k), (k, n), (m, n)))
    bound = [a, b, c]
    readonly = c.copy()
    readonly.flags.writeable = False
    odd = np.zeros(2 * b.size + 1, np.uint8)[1:].view(np.uint16).reshape(k, n)
    wide = np.zeros((k, 2 * n), np.uint16)
    for index, wrong, words in (
        (0, np.zeros((3, k), np.uint16), ["ag_gemm", "a has shape 3x6 and 36 bytes", "2x6 of bf16 and 24 bytes"]),
        (0, a.astype(np.float32), ["a has data type f32", "bf16"]),
        (0, a.view(np.float16), ["a has data type f16", "bf16"]),
        (0, a.astype(">u2"), ["a has data type >u2"]),
        (0, Foreign(a.astype(np.float32)), ["a has data type f32"]),
        (0, OnGpu(4096, a.shape, "<u2"), ["a lies on DLPack device (2, -1)", "host memory"]),
        (0, bytes(23), ["23 bytes", "24 bytes"]),
        (0, bytes(26), ["26 bytes", "24 bytes"]),
        (1, np.zeros((n, k), np.uint16), ["b has shape 4x6", "6x4"]),
        (1, wide[:, ::2], ["b of shape (6, 4) has strides (16, 4)", "dense"]),
        (1, Foreign(wide[:, ::2]), ["b of shape (6, 4) has strides (8, 2)", "dense"]),
        (1, odd, ["b begins at", "no multiple of 2 bytes"]),
        (2, readonly, ["c is read-only"]),
        (2, bytes(2 * m * n), ["c is read-only"]),
        (2, memoryview(np.zeros((m, 2 * n), np.uint16))[::2], ["c of shape (4, 8) has strides (32, 2)"]),
    ):
        operands = list(bound)
        operands[index] = wrong
        with raises(mkernel.InvalidArgument, *words):
            operation.launch(*operands)
    for wrong in (None, 4096, "x", object()):
        with raises(TypeError, "a is of type"):
            operation.launch(wrong, b, c)
    for options, words in (({"deadline": 0}, ["deadline = 0"]), ({"compute_threads": -1}, ["compute_threads = -1", "0..4096"])):
        with raises(mkernel.InvalidArgument, *words):
            operation.launch(a, b, c, **options)
    assert group.status() is None
    # What is taken: DLPack alone, bytes-like objects, ctypes, flat arrays.
    taken = (ctypes.c_uint16 * (m * n))()
    operation.run(Foreign(a), b.tobytes(), taken, timeout=LONG)
    operation.run(bytearray(a.tobytes()), memoryview(b), c.reshape(-1), timeout=LONG)
    try:
        import ml_dtypes
    except ImportError:
        print("ml_dtypes is not installed")
    else:
        ones = [np.ones(x.shape, ml_dtypes.bfloat16) for x in bound]
        operation.run(*ones, timeout=LONG)
        assert (ones[2].astype(np.float32) == k).all()
    assert group.status() is None
    launch = operation.bind(a, b, c)
    operation.close()
    with raises(mkernel.FailedPrecondition, "ag_gemm is closed"):
        launch.launch()
    group.barrier()


NO_INTEGERS = (True, np.bool_(True), 2.0, np.float32(2), "2", b"2", None, [2], math.nan, np.timedelta64(2, "s"))
NO_NUMBERS = (True, np.bool_(False), "2", b"2", [2.0], 2j, np.timedelta64(2, "s"), object())
NO_TEXTS = (5, b"text", ["text"], pathlib.Path("text"), True)
NO_BOOLS = (2, 1.0, "no", [], np.float32(1))
OBJECTS = np.array([b"x", {}], object)
NO_BYTES = (5, True, "text", [1, 2], OBJECTS)


def wrong_types():
    """Every argument of every call with values of types that it is not: refused, by its name, before anything happens."""
    session = mkernel.connect(SOCKET)
    group = session.join("test", 1, 0)
    lane = group.reserve_lanes(1)
    buffer, gemm = group.symmetric(64), group.gemm_ar(8, 8, 8, dtype="f16")
    zeros = [bytearray(128) for _ in range(3)]
    pending = gemm.launch(*zeros)
    put = {"target": 0, "lane": lane, "region": buffer.region, "nbytes": 0}
    moe = {"max_tokens": 4, "hidden": 8, "n": 8, "experts": 2, "topk": 1}
    attention = {"sequence": 4, "heads": 1, "head_dim": 8}
    integers = {
        "join": (lambda **field: session.join(**{"name": "x", "world_size": 1, "rank": 0, **field}),
                 ("world_size", "rank", "lanes", "region_capacity")),
        "connect": (lambda **field: mkernel.connect(SOCKET, **field), ("device", "weight")),
        "block_range": (lambda **field: mkernel.block_range(**{"total": 8, "parts": 2, "index": 0, **field}), ("total", "parts", "index")),
        "rank_info": (group.rank_info, ("rank",)),
        "fail": (lambda code: group.fail("x", code), ("code",)),
        "symmetric": (group.symmetric, ("nbytes",)),
        "symmetric_gpu": (group.symmetric_gpu, ("nbytes",)),
        "host_buffer": (group.host_buffer, ("nbytes",)),
        "register_gpu": (lambda nbytes: group.register_gpu(4096, nbytes), ("nbytes",)),
        "register_memory": (lambda **field: group.register_memory(**{"memfd": 0, "nbytes": 1, **field}), ("memfd", "nbytes", "offset")),
        "reserve_lanes": (group.reserve_lanes, ("count",)),
        "put": (lambda **field: group.put(source=buffer, **{**put, **field}), (*put, "offset", "region_offset")),
        "signal": (lambda **field: group.signal(**{"target": 0, "lane": lane, **field}), ("target", "lane")),
        "puts": (lambda **field: group.puts(**{"target": 0, "lane": lane, **field}), ("target", "lane")),
        "arrivals": (lambda **field: group.arrivals(**{"source": 0, "lane": lane, **field}), ("source", "lane")),
        "wait_arrival": (lambda **field: group.wait_arrival(0, **{"lane": lane, "count": 0, **field}), ("lane", "count")),
        "wait_completed": (lambda rank: group.wait_completed(rank, lane, 0), ("rank",)),
        "view": (lambda **field: buffer.view(**field), ("offset",)),
        "is_mapped": (buffer.is_mapped, ("rank",)),
        "gemm": (lambda **field: group.ag_gemm(**{"m": 8, "n": 8, "k": 8, **field}), ("m", "n", "k", "comm_ctas", "sms")),
        "moe": (lambda **field: group.moe(**{**moe, **field}), (*moe, "intermediate", "capacity", "shared_intermediate")),
        "grouped": (lambda **field: group.grouped_gemm(**{"max_rows": 8, "k": 8, "n": 8, "groups": 2, **field}),
                    ("max_rows", "k", "n", "groups")),
        "attention": (lambda **field: group.attention(**{**attention, **field}), (*attention, "batch")),
        "launch": (lambda compute_threads: gemm.launch(*zeros, compute_threads=compute_threads), ("compute_threads",)),
        "enqueue": (lambda stream: gemm.bind(*zeros).enqueue(stream), ("stream",)),
    }
    others = (
        (NO_NUMBERS, (
            (lambda timeout: mkernel.connect(SOCKET, timeout=timeout), "timeout"),
            (lambda timeout: session.join("x", 1, 0, timeout=timeout), "timeout"),
            (lambda timeout: group.put(source=buffer, timeout=timeout, **put), "timeout"),
            (lambda timeout: group.signal(0, lane, timeout=timeout), "timeout"),
            (lambda timeout: group.wait_arrival(0, lane, 0, timeout), "timeout"),
            (lambda timeout: group.wait_completed(0, lane, 0, timeout), "timeout"),
            (lambda timeout: pending.wait(timeout), "timeout"),
            (lambda timeout: gemm.run(*zeros, timeout=timeout), "timeout"),
            (lambda deadline: gemm.bind(*zeros, deadline=deadline), "deadline"),
            (lambda nic_gbytes: group.ag_gemm(8, 8, 8, nic_gbytes=nic_gbytes), "nic_gbytes"),
            (lambda scale: group.attention(**attention, scale=scale), "scale"),
        )),
        (NO_TEXTS, (
            (lambda name: mkernel.connect(SOCKET, name=name), "name"),
            (lambda name: session.join(name, 1, 0), "name"),
            (lambda text: group.fail(text), "text"),
            (lambda machine: group.ag_gemm(8, 8, 8, machine=machine), "machine"),
        )),
        ((*NO_TEXTS, {}), (
            (lambda dtype: group.ag_gemm(8, 8, 8, dtype=dtype), "dtype"),
            (lambda b_layout: group.ag_gemm(8, 8, 8, b_layout=b_layout), "b_layout"),
            (lambda executor: group.attention(**attention, executor=executor), "executor"),
            (lambda dtype: buffer.view(dtype), "dtype"),
        )),
        (NO_BOOLS, (
            (lambda causal: group.attention(**attention, causal=causal), "causal"),
            (lambda weights_on_input: group.moe(**moe, weights_on_input=weights_on_input), "weights_on_input"),
        )),
        (NO_BYTES, (
            (lambda mine: group.exchange(mine), "mine"),
            (lambda secret: session.join("x", 1, 0, secret=secret), "secret"),
        )),
        ((5, None, "2", 2.0), (
            (lambda window: group.attention(**attention, window=window), "window"),
            (lambda more_n: group.ag_gemm(8, 8, 8, more_n=more_n), "more_n"),
            (lambda more_b: gemm.bind(*zeros, more_b=more_b), "more_b"),
        )),
        ((2.0, "2", [2.0], [True], {}.keys), (
            (lambda shape: buffer.view("u8", shape), "shape"),
            (lambda shape: buffer.numpy("u1", shape), "shape"),
        )),
        ((5, 1.0, [SOCKET], object()), ((lambda socket: mkernel.connect(socket), "socket"),)),
    )
    calls = [(call, name, wrong) for call, names in integers.values() for name in names
             for wrong in NO_INTEGERS if not (call is group.register_gpu and wrong is None)]
    calls += [(call, name, wrong) for wrongs, given in others for call, name in given for wrong in wrongs
              if wrong is not None or name not in ("timeout", "deadline")]
    accepted = []
    for call, name, wrong in calls:
        try:
            call(**{name: wrong})
        except Exception as error:
            if not isinstance(error, (TypeError, mkernel.InvalidArgument)) or name not in str(error):
                accepted.append(f"{name} = {wrong!r}: {error!r}")
        else:
            accepted.append(f"{name} = {wrong!r} was taken")
    assert not accepted, "\n".join(accepted)
    with raises(mkernel.InvalidArgument, "dtype = object"):
        buffer.numpy(object)
    assert group.status() is None
    group.barrier()


def taken_types():
    """What is taken because users have it: scalars of numpy, durations, paths of every kind, what a torch.device has."""

    class Device:
        type, index = "cpu", None

    for name, socket in (("a", SOCKET.encode()), ("b", pathlib.Path(SOCKET))):
        with mkernel.connect(socket, device=Device(), weight=np.uint8(1), timeout=datetime.timedelta(seconds=LONG)) as session:
            assert (session.socket, session.device) == (SOCKET, -1)
            with session.join(name, np.int64(1), np.int32(0), lanes=np.int16(2), timeout=np.float32(LONG)) as group:
                assert (group.lanes, group.timeout, type(group.timeout)) == (2, LONG, float)
                assert group.exchange(np.arange(3, dtype=np.int16)) == [np.arange(3, dtype=np.int16).tobytes()]
                assert group.exchange(np.int64(5)) == [np.int64(5).tobytes()]
                assert group.exchange(memoryview(b"a-b-c")[::2]) == [b"abc"]
                lane = group.reserve_lanes(np.array(1))
                buffer = group.symmetric(np.uint64(64))
                assert buffer.view("f32", np.int64(4)).shape == (4,) and buffer.numpy("f4", np.array([2, 2])).shape == (2, 2)
                number = group.put(np.int64(0), lane, buffer, region=np.uint32(buffer.region), nbytes=np.int64(8))
                group.wait_arrival(0, lane, np.int64(number), datetime.timedelta(minutes=1))
                with group.gemm_ar(np.int64(8), 8, np.int32(8), dtype="f16", nic_gbytes=np.float64(0)) as operation:
                    ones = [np.ones((8, 8), np.float16) for _ in range(3)]
                    operation.run(*ones, timeout=np.float64(LONG), deadline=datetime.timedelta(seconds=30))
                    assert (ones[2] == 8).all()
                with group.attention(sequence=4, heads=1, head_dim=8, causal=np.bool_(True), scale=np.float32(0.5), window=[-1, 0]):
                    pass
    assert mkernel.block_range(np.int64(10), np.int32(3), 1) == (3, 6)
    Device.type = "mps"
    with raises(mkernel.InvalidArgument, "device", "known are cpu and cuda"):
        mkernel.connect(SOCKET, device=Device())
    for limit in (datetime.timedelta(0), datetime.timedelta(days=2), math.nan, math.inf, -1):
        with raises(mkernel.InvalidArgument, "timeout"):
            mkernel.connect(SOCKET, timeout=limit)
