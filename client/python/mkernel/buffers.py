"""Buffers that puts read from and write into, and typed views of them."""

import ctypes
import math
from typing import TYPE_CHECKING, Any, Optional, Sequence, Union

from mkernel import _dlpack
from mkernel._arguments import extents, integer
from mkernel._calls import Handle, closed, drop
from mkernel._library import lib
from mkernel.errors import FailedPrecondition, InvalidArgument, OutOfRange

if TYPE_CHECKING:
    import numpy

    from mkernel.group import Group

MOST_EXTENT = 1 << 48


class View:
    """A dense, row-major array in a buffer: what __dlpack__ consumers (torch.from_dlpack, numpy.from_dlpack) and operations
    take. It keeps the memory mapped as long as it lives."""

    __slots__ = ("address", "dtype", "shape", "nbytes", "_device", "_owner")

    def __init__(self, owner: Any, address: int, device: "tuple[int, int]", dtype: str, shape: "tuple[int, ...]") -> None:
        self.address = address
        self.dtype = dtype
        self.shape = shape
        self.nbytes = _dlpack.bytes_of(dtype, shape)
        self._device = device
        self._owner = owner

    def __dlpack_device__(self) -> "tuple[int, int]":
        """(device type, device number) of DLPack."""
        return self._device

    def __dlpack__(self, *, stream: Optional[int] = None, **_: Any) -> Any:
        """A capsule "dltensor" over this memory. Nothing is copied and no stream is waited for."""
        return _dlpack.capsule(self._owner, self.address, self._device, self.dtype, self.shape)

    def __repr__(self) -> str:
        return f"<mkernel.View {self.dtype} {list(self.shape)} at {self.address:#x}>"


class Buffer:
    """What symmetric and host buffers have in common. One thread at a time per buffer.

    A buffer ends by close(), at the end of its `with` block or when nothing refers to it any more. Views keep the memory: it is
    given back when the last of them is gone too. Close the buffers that ranks have in common, and drop their views, in the same
    order on every rank."""

    def __init__(self, group: "Group", handle: Handle, nbytes: int, data: Optional[int], region: int, gpu: Optional[int]) -> None:
        self._group = group
        self._handle: Optional[Handle] = handle
        self._data = data or 0
        self._device = (_dlpack.CPU, 0) if gpu is None else (_dlpack.CUDA, gpu)
        self.nbytes = nbytes  #: bytes of the buffer on this rank
        self.region = region  #: the number that put() takes as `region`

    def _alive(self) -> Handle:
        handle = self._handle
        if handle is None:
            raise closed(f"the {self._what()} of region {self.region}")
        return handle

    def _what(self) -> str:
        return "buffer"

    @property
    def address(self) -> int:
        """Where it lies in this process (on the GPU: a device address). Only valid while the buffer or a view lives."""
        self._alive()
        return self._data

    def _address_of(self, rank: Optional[int]) -> int:
        if rank is not None:
            raise InvalidArgument(f"rank = {rank}: only symmetric buffers have memory of other ranks")
        return self._data

    def view(self, dtype: str = "u8", shape: Union[int, Sequence[int], None] = None, *, offset: int = 0,
             rank: Optional[int] = None) -> View:
        """A typed view. `dtype`: "bf16", "f16", "f32", "f64", or "i" or "u" with 8, 16, 32 or 64. `shape`: extents; None: all
        whole elements from `offset` (bytes) on. `rank`: another rank of this node, whose memory is mapped here. Errors:
        InvalidArgument, OutOfRange, FailedPrecondition (that rank's memory is not mapped here)."""
        handle = self._alive()
        if not isinstance(dtype, str) or dtype not in _dlpack.DTYPES:
            raise InvalidArgument(f"dtype = {dtype!r}; known are {', '.join(_dlpack.DTYPES)}")
        offset = integer("offset", offset, 0, self.nbytes)
        item = _dlpack.bytes_of(dtype)
        if shape is None:
            wanted: "tuple[int, ...]" = ((self.nbytes - offset) // item,)
        else:
            wanted = extents("shape", shape, MOST_EXTENT)
        if _dlpack.bytes_of(dtype, wanted) > self.nbytes - offset:
            raise OutOfRange(
                f"a view of shape {wanted} of {dtype} at offset {offset} has {_dlpack.bytes_of(dtype, wanted)} bytes; the buffer has "
                f"{self.nbytes - offset} from there"
            )
        if offset % item:
            raise InvalidArgument(f"offset = {offset} is no multiple of {item}, the bytes of one {dtype}")
        return View(handle, self._address_of(rank) + offset, self._device, dtype, wanted)

    def memoryview(self, *, rank: Optional[int] = None) -> memoryview:
        """The bytes, writable, in host memory. `rank` as for view()."""
        return _memoryview_of(self.view(rank=rank))

    def numpy(self, dtype: Any = "uint8", shape: Union[int, Sequence[int], None] = None, *, offset: int = 0,
              rank: Optional[int] = None) -> "numpy.ndarray[Any, Any]":
        """The same memory as an array of numpy, which must be installed. `dtype` is one of numpy's, such as "float16"; numpy has
        no bfloat16: take "uint16", or the type of the package ml_dtypes. The rest as for view()."""
        import numpy

        wanted = numpy.dtype(dtype)
        if wanted.hasobject or not wanted.itemsize:
            raise InvalidArgument(f"dtype = {wanted}, which has no bytes of its own")
        if shape is None:
            shape = (self.nbytes - integer("offset", offset, 0, self.nbytes)) // wanted.itemsize
        shape = extents("shape", shape, MOST_EXTENT)
        count = math.prod(shape)
        flat = self.view("u8", count * wanted.itemsize, offset=offset, rank=rank)
        return numpy.frombuffer(_memoryview_of(flat), numpy.uint8).view(wanted).reshape(shape)

    def __dlpack_device__(self) -> "tuple[int, int]":
        return self._device

    def __dlpack__(self, *, stream: Optional[int] = None, **_: Any) -> Any:
        """The bytes of the buffer as a one-dimensional tensor of u8; view() has other types and shapes."""
        return self.view().__dlpack__()

    def close(self) -> None:
        """Gives the buffer back; a second call does nothing."""
        holder, self._handle = [self._handle], None
        drop("closing a buffer", holder)

    def __enter__(self) -> Any:
        self._alive()
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __len__(self) -> int:
        return self.nbytes

    def __repr__(self) -> str:
        state = "closed" if self._handle is None else f"region {self.region}"
        return f"<mkernel.{type(self).__name__} of {self.nbytes} bytes, {state}>"


def _memoryview_of(view: View) -> memoryview:
    if view.__dlpack_device__()[0] != _dlpack.CPU:
        raise FailedPrecondition("the buffer lies on a GPU, where only __dlpack__ consumers and kernels reach it")
    array = (ctypes.c_uint8 * view.nbytes).from_address(view.address)
    array.owner = view  # type: ignore[attr-defined]
    return memoryview(array).cast("B")


class SymmetricBuffer(Buffer):
    """The same number of zeroed bytes on every rank, registered under the same region number everywhere and mapped by the ranks
    of one node. Made by Group.symmetric(), symmetric_gpu() and register_gpu()."""

    source: Any = None  # of register_gpu(): the owner of the memory

    def _what(self) -> str:
        return "symmetric buffer"

    def is_mapped(self, rank: int) -> bool:
        """Whether the memory of `rank` is mapped here, which is so on the same node."""
        rank = integer("rank", rank, 0, self._group.world_size - 1)
        return bool(lib.mk_symmetric_peer(self._alive().pointer, rank))

    def _address_of(self, rank: Optional[int]) -> int:
        if rank is None:
            return self._data
        rank = integer("rank", rank, 0, self._group.world_size - 1)
        address = lib.mk_symmetric_peer(self._alive().pointer, rank)
        if not address:
            node = self._group.rank_info(rank).node_name
            raise FailedPrecondition(f"the buffer of rank {rank} is not mapped here: that rank is on node {node}")
        return int(address)


class HostBuffer(Buffer):
    """Registered host memory of this rank alone. Peers need its `region`: exchange it. Closing waits for puts in flight on it.
    Made by Group.host_buffer() and register_memory()."""

    def _what(self) -> str:
        return "host buffer"
