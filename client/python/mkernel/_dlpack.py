"""DLPack in ctypes: memory of buffers goes out as capsules, operands come in from them."""

import ctypes
import math
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p, py_object
from typing import Any, NamedTuple, Optional

from mkernel.errors import InvalidArgument

CPU, CUDA, CUDA_HOST = 1, 2, 3  # DLDeviceType

# Names of data types: (DLDataTypeCode, bits).
DTYPES = {
    "i8": (0, 8),
    "i16": (0, 16),
    "i32": (0, 32),
    "i64": (0, 64),
    "u8": (1, 8),
    "u16": (1, 16),
    "u32": (1, 32),
    "u64": (1, 64),
    "f16": (2, 16),
    "f32": (2, 32),
    "f64": (2, 64),
    "bf16": (4, 16),
}
_NAMES = {value: name for name, value in DTYPES.items()}


def bytes_of(dtype: str, shape: "tuple[int, ...]" = ()) -> int:
    """Of a dense array; without a shape of one element."""
    return math.prod(shape) * DTYPES[dtype][1] // 8


class _Device(Structure):
    _fields_ = [("type", c_int32), ("id", c_int32)]


class _DataType(Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class _Tensor(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device", _Device),
        ("ndim", c_int32),
        ("dtype", _DataType),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class _Managed(Structure):
    pass


_Deleter = CFUNCTYPE(None, c_void_p)
_Managed._fields_ = [("tensor", _Tensor), ("context", c_void_p), ("deleter", _Deleter)]

_UNUSED = b"dltensor"
_new = ctypes.PYFUNCTYPE(py_object, c_void_p, c_char_p, c_void_p)(("PyCapsule_New", ctypes.pythonapi))
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, py_object, c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_pointer = ctypes.PYFUNCTYPE(c_void_p, py_object, c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
# A capsule that is destroyed is not touched with new references: these two take its address.
_dying_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, c_void_p, c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_dying_pointer = ctypes.PYFUNCTYPE(c_void_p, c_void_p, c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
keep_for_ever = ctypes.PYFUNCTYPE(None, py_object)(("Py_IncRef", ctypes.pythonapi))

_exported: "dict[int, tuple[Any, ...]]" = {}  # address of a _Managed: it, its shape, what owns the memory


@_Deleter
def _delete(address: int, _pop: Any = _exported.pop) -> None:
    _pop(address, None)


@ctypes.PYFUNCTYPE(None, c_void_p)
def _destroy_capsule(capsule: int, _pop: Any = _exported.pop, _name: bytes = _UNUSED) -> None:
    if _dying_is_valid(capsule, _name):  # nobody has taken the tensor
        _pop(_dying_pointer(capsule, _name), None)


# Consumers may let go after the interpreter has cleared this module.
for _kept in (_delete, _destroy_capsule, _exported):
    keep_for_ever(_kept)


def capsule(owner: Any, address: int, device: "tuple[int, int]", dtype: str, shape: "tuple[int, ...]") -> Any:
    """A capsule "dltensor" of dense memory that `owner` keeps alive."""
    code, bits = DTYPES[dtype]
    extents = (c_int64 * len(shape))(*shape)
    tensor = _Tensor(address, _Device(*device), len(shape), _DataType(code, bits, 1), extents, None, 0)
    managed = _Managed(tensor, None, _delete)
    key = ctypes.addressof(managed)
    _exported[key] = (managed, extents, owner)
    return _new(key, _UNUSED, ctypes.cast(_destroy_capsule, c_void_p))


class Memory(NamedTuple):
    """What an operand is: dense memory with a data type, on a device."""

    address: int
    dtype: Optional[str]  # None: bytes without a type
    shape: "tuple[int, ...]"
    nbytes: int
    device: "tuple[int, int]"
    writable: bool
    owner: Any  # keeps it alive


def is_dense(shape: "tuple[int, ...]", strides: "Optional[tuple[int, ...]]", unit: int) -> bool:
    """Whether strides, in units of elements or of bytes, are those of a dense row-major array."""
    if strides is None or 0 in shape:
        return True
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if extent != 1 and stride != unit:
            return False
        unit *= extent
    return True


def memory_of(field: str, source: Any, stream: Optional[int] = None) -> Memory:
    """The memory behind an object with __dlpack__, which the capsule in `owner` keeps alive. `stream`: as its __dlpack__ takes
    it on a GPU."""
    kind, number = source.__dlpack_device__()
    device = (int(kind), int(number))
    taken = source.__dlpack__() if device[0] != CUDA else source.__dlpack__(stream=stream)
    if not _is_valid(taken, _UNUSED):
        raise InvalidArgument(f"{field}: __dlpack__ returned no capsule named dltensor")
    tensor = _Managed.from_address(_pointer(taken, _UNUSED)).tensor
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else None
    dtype = _NAMES.get((tensor.dtype.code, tensor.dtype.bits)) if tensor.dtype.lanes == 1 else None
    if dtype is None:
        raise InvalidArgument(
            f"{field} has DLPack data type code {tensor.dtype.code}, {tensor.dtype.bits} bits, {tensor.dtype.lanes} lanes; "
            f"known are {', '.join(DTYPES)}"
        )
    if not is_dense(shape, strides, 1):
        raise InvalidArgument(f"{field} of shape {shape} has strides {strides} in elements: it must be dense and row-major")
    return Memory((tensor.data or 0) + tensor.byte_offset, dtype, shape, bytes_of(dtype, shape), device, True, taken)
