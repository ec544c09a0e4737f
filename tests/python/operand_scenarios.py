"""Operands and shapes of operations that are refused, on ranks of their own."""
import ctypes

import numpy as np
from rank import LONG, RANK, WORLD, join, raises

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
