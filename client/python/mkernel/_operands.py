"""Operands of operations: any object that exposes memory becomes an address, checked against what the operation needs."""

import ctypes
import math
from ctypes import POINTER, Structure, c_char_p, c_int, c_ssize_t, c_void_p, py_object
from typing import Any, NamedTuple, Optional

from mkernel import _dlpack
from mkernel._arguments import U64_MAX, integer
from mkernel._dlpack import Memory, bytes_of, is_dense
from mkernel.errors import InvalidArgument

_HOST = (_dlpack.CPU, 0)
# What stands for a data type that an operand needs. numpy has no bf16: its bits come as u16.
_ACCEPTED = {"bf16": ("bf16", "u16", None), "f16": ("f16", "u16", None), "i32": ("i32", None), "f32": ("f32", None)}
GPU_ALIGNMENT = 16  # bytes: TMA loads and 16-byte stores


class _PyBuffer(Structure):
    _fields_ = [
        ("buf", c_void_p),
        ("obj", c_void_p),
        ("len", c_ssize_t),
        ("itemsize", c_ssize_t),
        ("readonly", c_int),
        ("ndim", c_int),
        ("format", c_char_p),
        ("shape", POINTER(c_ssize_t)),
        ("strides", POINTER(c_ssize_t)),
        ("suboffsets", POINTER(c_ssize_t)),
        ("internal", c_void_p),
    ]


_SIMPLE = 0  # PyBUF_SIMPLE
_get = ctypes.PYFUNCTYPE(c_int, py_object, POINTER(_PyBuffer), c_int)(("PyObject_GetBuffer", ctypes.pythonapi))
_release = ctypes.PYFUNCTYPE(None, POINTER(_PyBuffer))(("PyBuffer_Release", ctypes.pythonapi))


class _Held:
    """An export of the buffer protocol, released with this object."""

    def __init__(self, view: memoryview) -> None:
        self._view = _PyBuffer()
        _get(view, self._view, _SIMPLE)  # raises BufferError or ValueError where it cannot be had
        self.address = self._view.buf or 0

    def __del__(self) -> None:
        _release(self._view)


def _of_buffer(field: str, source: Any) -> Memory:
    try:
        view = memoryview(source)
    except TypeError:
        raise TypeError(
            f"{field} is of type {type(source).__name__}; accepted are arrays (numpy, ml_dtypes, __dlpack__), bytes-like "
            "objects and views of buffers"
        ) from None
    if not view.c_contiguous:
        raise InvalidArgument(f"{field} of shape {view.shape} has strides {view.strides} in bytes: it must be dense and row-major")
    held = _Held(view)
    code = view.format.lstrip("@=<")
    names = {"H": "u16", "e": "f16", "f": "f32", "d": "f64", "i": "i32", "h": "i16", "I": "u32"}
    dtype = None if code in ("B", "b", "c") else names.get(code, code)
    if code in ("l", "q", "L", "Q"):
        dtype = f"{'i' if code in 'lq' else 'u'}{8 * view.itemsize}"
    return Memory(held.address, dtype, tuple(view.shape or ()), view.nbytes, _HOST, not view.readonly, held)


def _of_array_interface(field: str, source: Any, interface: "dict[str, Any]", device: "tuple[int, int]") -> Memory:
    kind, item = interface["typestr"][1], int(interface["typestr"][2:])
    name = f"{kind}{8 * item}"
    dtype: Optional[str] = name if name in _dlpack.DTYPES else None
    if kind == "V" and getattr(getattr(source, "dtype", None), "name", "") == "bfloat16":
        dtype = "bf16"
    elif dtype is None or interface["typestr"][0] == ">":
        raise InvalidArgument(f"{field} has data type {interface['typestr']}; known are {', '.join(_dlpack.DTYPES)}")
    shape, strides = tuple(interface["shape"]), interface.get("strides")
    if not is_dense(shape, strides, item):
        raise InvalidArgument(f"{field} of shape {shape} has strides {strides} in bytes: it must be dense and row-major")
    address, readonly = interface["data"]
    return Memory(address, dtype, shape, math.prod(shape) * item, device, not readonly, source)


def memory_of(field: str, source: Any) -> Memory:
    """The memory behind `source`: a view of a buffer, an array of numpy or ml_dtypes, an object with __dlpack__ or
    __cuda_array_interface__, or a bytes-like object."""
    for name, device in (("__array_interface__", _HOST), ("__cuda_array_interface__", (_dlpack.CUDA, -1))):
        if type(source).__module__.partition(".")[0] == "torch":
            break  # its tensors answer to all of these, and only DLPack knows bf16
        interface = getattr(source, name, None)
        if isinstance(interface, dict) and interface.get("data") is not None:
            return _of_array_interface(field, source, interface, device)
    if hasattr(source, "__dlpack_device__"):
        return _dlpack.memory_of(field, source, stream=-1)
    return _of_buffer(field, source)


class Operand(NamedTuple):
    """What an operation needs in one field of its arguments."""

    field: str
    dtype: str
    shape: "tuple[int, ...]"
    written: bool = False

    def address_of(self, source: Any, gpu: Optional[int]) -> "tuple[int, Any]":
        """(address, what keeps it alive). `gpu`: the session's device for the cuda executor, where an int is taken as an
        address that the caller vouches for; None for the cpu executor."""
        if gpu is not None and isinstance(source, int):
            return integer(self.field, source, 0, U64_MAX), None
        memory = memory_of(self.field, source)
        wanted = "x".join(str(extent) for extent in self.shape)
        if memory.dtype not in _ACCEPTED[self.dtype]:
            raise InvalidArgument(f"{self.field} has data type {memory.dtype}, wanted is {self.dtype}")
        nbytes = bytes_of(self.dtype, self.shape)
        flat = len(memory.shape) <= 1
        if memory.nbytes != nbytes or not (flat or memory.shape == self.shape):
            have = "x".join(str(extent) for extent in memory.shape)
            raise InvalidArgument(
                f"{self.field} has shape {have} and {memory.nbytes} bytes, wanted are shape {wanted} of {self.dtype} and "
                f"{nbytes} bytes"
            )
        if self.written and not memory.writable:
            raise InvalidArgument(f"{self.field} is read-only, and the operation writes it")
        self._check_device(memory, gpu)
        alignment = bytes_of(self.dtype) if gpu is None else GPU_ALIGNMENT
        if nbytes and memory.address % alignment:
            raise InvalidArgument(f"{self.field} begins at {memory.address:#x}, which is no multiple of {alignment} bytes")
        return memory.address, memory.owner

    def _check_device(self, memory: Memory, gpu: Optional[int]) -> None:
        kind, number = memory.device
        if gpu is None and kind not in (_dlpack.CPU, _dlpack.CUDA_HOST):
            raise InvalidArgument(f"{self.field} lies on DLPack device {memory.device}; the cpu executor takes host memory")
        if gpu is not None and (kind != _dlpack.CUDA or number not in (gpu, -1)):
            raise InvalidArgument(
                f"{self.field} lies on DLPack device {memory.device}; the cuda executor takes memory of the session's GPU {gpu}"
            )
