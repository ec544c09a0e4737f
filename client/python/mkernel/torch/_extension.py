"""The extension in C++ that takes calls like one before (short_way.cc): where its build is kept, and how it is called.

A build fits one version of PyTorch and of this package, and is made by build() alone. Where one that fits is in the user's cache
folder, importing mkernel.torch loads it. Without one, or with MKERNEL_TORCH_EXTENSION=0, everything goes through Python."""

import atexit
import ctypes
import hashlib
import os
import pathlib
import platform
import warnings
import weakref
from ctypes import c_char_p, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any, Optional, Sequence

import torch

from mkernel._abi import MOST_MORE_B, GemmArguments
from mkernel._library import lib
from mkernel._operation import OperationHandle, Pending
from mkernel._version import __version__

PACKAGE = pathlib.Path(__file__).resolve().parent
SOURCES = ("short_way.cc", "short_way.h")
KINDS = ("fused_all_gather_matmul", "fused_matmul_reduce_scatter", "fused_matmul_all_reduce")  # in the order of the extension
_SLICE_MILLISECONDS = 50

_FUNCTIONS: "dict[str, tuple[Any, ...]]" = {
    "built_for": (c_char_p,),
    "add_kernels": (c_char_p,),
    "group_create": (c_void_p,),
    "group_destroy": (None, c_void_p),
    "lock": (c_int, c_void_p, c_uint32),
    "unlock": (None, c_void_p),
    "depth": (c_int, c_void_p),
    "set_stream": (None, c_void_p, c_int64, c_void_p),
    "forget": (None,),
    "pause": (None, c_int),
    "after_fork": (None,),
    "taken": (c_uint64, c_int),
    "reset_taken": (None,),
}


class Description(ctypes.Structure):
    """What a call launches. The fields of Description in short_way.h."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("group", c_void_p),
        ("operation", c_void_p),
        ("arguments", c_void_p),
        ("argument_bytes", c_size_t),
        ("options", c_void_p),
        ("option_bytes", c_size_t),
        *((field, c_size_t) for field in ("a", "b", "c", "gathered", "more_b", "more_c")),
        ("uses", c_void_p),
        ("last_used", c_void_p),
        *((function, c_void_p) for function in ("enqueue", "is_capturing", "launch", "wait", "destroy")),
        ("fused", c_int64 * (1 + MOST_MORE_B)),
    ]


class GroupLock:
    """The recursive lock of one group, which calls of the extension take, too. Ctrl-C ends the wait for it. Any thread."""

    def __init__(self, functions: Any) -> None:
        self._functions = functions
        self.pointer: int = functions.group_create()

    def __enter__(self) -> None:
        lock, pointer = self._functions.lock, self.pointer
        before: int = self._functions.depth(pointer)
        try:
            while not lock(pointer, _SLICE_MILLISECONDS):
                pass
        except BaseException:  # of a signal handler, which may have run when the lock was had
            while self._functions.depth(pointer) > before:
                self._functions.unlock(pointer)
            raise

    def __exit__(self, *_: Any) -> None:
        self._functions.unlock(self.pointer)

    def set_stream(self, stream_id: int, stream: int) -> None:
        """With the lock: that of the launch before, by PyTorch's name and as a cudaStream_t."""
        self._functions.set_stream(self.pointer, stream_id, stream)

    def __del__(self) -> None:
        pointer, self.pointer = self.pointer, 0
        self._functions.group_destroy(pointer)


class _Functions:
    """Those of a build as attributes, without their prefix. Raises OSError, or AttributeError for another library."""

    def __init__(self, path: pathlib.Path) -> None:
        library = ctypes.CDLL(str(path))
        for name, (result, *arguments) in _FUNCTIONS.items():
            function = getattr(library, f"mkernel_torch_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:  # tells type checkers that the rest exists
        raise AttributeError(name)


class Extension:
    """A build that is loaded. Its kernels are not the operators' yet: add_kernels()."""

    def __init__(self, path: pathlib.Path, functions: _Functions) -> None:
        self.path = path
        self.functions = functions
        self.lock_of_group = lambda: GroupLock(functions)

    def add_kernels(self) -> bool:
        """Once the operators and those of their calls in Python are defined. False, with a warning: it cannot be used."""
        error = self.functions.add_kernels()
        if error is not None:
            text = error.decode(errors="replace").splitlines()[0]
            warnings.warn(f"{self.path} does not fit PyTorch {torch.__version__}, and is not used: {text}", stacklevel=2)
            return False
        atexit.register(self.functions.pause, 1)  # runs before what ends the handles, which was registered earlier
        return True

    def taken(self) -> "dict[str, int]":
        """The calls that it took, by operator."""
        counts = ((name, int(self.functions.taken(kind))) for kind, name in enumerate(KINDS))
        return {name: count for name, count in counts if count}

    def remember(self, name: str, group_name: str, a: torch.Tensor, bs: "Sequence[torch.Tensor]", gathered: bool,
                 lead: "tuple[int, ...]", description: Description) -> None:
        """Of a call that was made just now, with its group's lock. `lead`: the sizes of every result but the last."""
        kind = KINDS.index(name)
        torch.ops.mkernel._remember(a, list(bs), group_name, kind, gathered, lead, ctypes.addressof(description))


def describe(lock: GroupLock, handle: OperationHandle, launch: Any, fused: "Sequence[int]", uses: Any, last_used: Any) -> Description:
    """`launch`: a mkernel.Launch of a Gemm. `uses`, `last_used`: c_int64 that live as long as the plan."""
    arguments, options = launch._arguments, launch._options._obj
    _handles[handle.pointer or 0] = handle
    fields = {field: getattr(GemmArguments, field).offset for field in ("a", "b", "c", "gathered", "more_b", "more_c")}
    return Description(
        struct_size=ctypes.sizeof(Description), group=lock.pointer, operation=handle.pointer, arguments=ctypes.addressof(arguments),
        argument_bytes=ctypes.sizeof(arguments), options=ctypes.addressof(options), option_bytes=ctypes.sizeof(options), **fields,
        uses=ctypes.addressof(uses), last_used=ctypes.addressof(last_used), launch=address_of(lib.mk_gemm_launch),
        wait=address_of(lib.mk_pending_wait), destroy=address_of(lib.mk_pending_destroy),
        fused=(c_int64 * (1 + MOST_MORE_B))(*fused),
    )


def queue(description: Description) -> None:
    """Makes it a launch that is queued on a stream of a GPU."""
    description.enqueue = address_of(lib.mk_gemm_enqueue)
    description.is_capturing = address_of(ctypes.CDLL("libcuda.so.1").cuStreamIsCapturing)


def address_of(function: Any) -> Optional[int]:
    return ctypes.cast(function, c_void_p).value


# Of operations that the extension launches, by their pointers.
_handles: "weakref.WeakValueDictionary[int, OperationHandle]" = weakref.WeakValueDictionary()


def wait_for_launch(operation: int, pending: int, operands: "list[torch.Tensor]") -> None:
    """Of the cpu executor, with the lock of the group: goes on with the wait for a launch that the extension has begun."""
    under_way = Pending(pending, tuple(operands))
    handle = _handles[operation]
    handle.forget_done()
    handle.in_flight.append(under_way)
    under_way.wait()


def built_for() -> str:
    """What a build has to be made for to be loaded: this PyTorch, this package, and these sources."""
    parts = [torch.__version__, str(torch.version.git_version), str(torch.compiled_with_cxx11_abi()), __version__, platform.machine()]
    digest = hashlib.sha256("\n".join(parts).encode())
    for source in SOURCES:
        digest.update((PACKAGE / source).read_bytes())
    return f"torch-{torch.__version__}-mkernel-{__version__}-{digest.hexdigest()[:16]}"


def path_of_build() -> pathlib.Path:
    """Where the build for this PyTorch is kept, whether it is there or not: mkernel/ in $XDG_CACHE_HOME, or in ~/.cache."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (pathlib.Path(cache) if cache else pathlib.Path.home() / ".cache") / "mkernel" / f"{built_for()}.so"


def _belongs_to_user(path: pathlib.Path) -> bool:
    """Whether nobody else but root could have written it."""
    return all(found.st_uid in (os.getuid(), 0) and not found.st_mode & 0o022 for found in (path.stat(), path.parent.stat()))


def _load() -> Optional[Extension]:
    if os.environ.get("MKERNEL_TORCH_EXTENSION") == "0":
        return None
    try:
        from torch._library.autograd import Info, make_autograd_impl  # noqa: F401: calls that go on in Python need them

        path = path_of_build()
        if not path.exists():
            return None
    except (ImportError, OSError, RuntimeError):  # another PyTorch, sources or a folder that cannot be read, no home folder
        return None
    try:
        if not _belongs_to_user(path):
            raise OSError("other users may write to it or to its folder")
        functions = _Functions(path)
        if functions.built_for().decode() != built_for():
            raise OSError(f"it was built for {functions.built_for().decode()}")
    except (OSError, AttributeError) as error:
        warnings.warn(f"{path} is not used: {error}", stacklevel=2)
        return None
    return Extension(path, functions)


extension: Optional[Extension] = _load()

