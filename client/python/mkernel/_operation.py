"""What all operations have in common: a handle, launches of it, and what is in flight."""

import collections
import ctypes
import sys
import threading
from ctypes import byref, c_void_p
from typing import TYPE_CHECKING, Any, Callable, Optional, Sequence

from mkernel import _abi
from mkernel._arguments import U64_MAX, Seconds, integer, milliseconds
from mkernel._calls import Handle, check, closed, drop, error_status, wait_in_slices
from mkernel._dlpack import keep_for_ever
from mkernel._library import lib
from mkernel._operands import Operand
from mkernel.errors import Error, InvalidArgument

if TYPE_CHECKING:
    from mkernel.group import Group

DTYPES = {"bf16": _abi.BF16, "f16": _abi.F16}
LAYOUTS = {"row_major": _abi.ROW_MAJOR, "column_major": _abi.COLUMN_MAJOR}
EXECUTORS = {"cpu": _abi.CPU, "cuda": _abi.CUDA}
I64_MAX = 2**63 - 1


def choice(field: str, value: Any, known: "dict[str, int]") -> int:
    if not isinstance(value, str) or value not in known:
        raise InvalidArgument(f"{field} = {value!r}; known are {', '.join(known)}")
    return known[value]


def block_range(total: int, parts: int, index: int) -> "tuple[int, int]":
    """(begin, end) of part `index` when `total` items are split into `parts`: how rows, experts and positions are spread over
    ranks. Errors: InvalidArgument (a negative total, no parts, an index that is none of them)."""
    total, parts, index = (integer(f"block_range: {field}", value, -I64_MAX, I64_MAX)
                           for field, value in (("total", total), ("parts", parts), ("index", index)))
    return _block_range(total, parts, index)


def _block_range(total: int, parts: int, index: int) -> "tuple[int, int]":
    if total < 0 or parts < 1 or not 0 <= index < parts:
        raise InvalidArgument(f"block_range: total = {total} must be at least 0, parts = {parts} at least 1, index = {index} below parts")
    return total * index // parts, total * (index + 1) // parts


def block_size(total: int, parts: int, index: int) -> int:
    """Of part `index`. For numbers that are checked already; also for the symbolic ones of torch.compile."""
    begin, end = _block_range(total, parts, index)
    return end - begin


def _destroy_later(destroy: Callable[[int], None], pointer: int, in_flight: Any) -> None:
    destroy(pointer)  # waits for the launches, whose operands `in_flight` keeps alive


class OperationHandle(Handle):
    """The handle of an operation. What its launches in flight read and write lives at least as long: destroying the handle waits
    for them. close() waits openly; a reference that goes with a launch in flight, as when Ctrl-C unwinds the stack, leaves this
    wait to a thread."""

    __slots__ = ("in_flight",)

    def __init__(self, pointer: int, destroy: Callable[[int], None]) -> None:
        super().__init__(pointer, destroy)
        self.in_flight: "collections.deque[Pending]" = collections.deque()

    def __del__(self) -> None:
        if self.pointer is None:
            return
        self.forget_done()
        if self.in_flight and sys.is_finalizing():
            self.abandon()  # no thread can wait for them
        elif self.in_flight:
            pointer, self.pointer = self.pointer, None
            arguments = (self._destroy, pointer, self.in_flight)
            try:
                threading.Thread(target=_destroy_later, args=arguments, name="mkernel operation", daemon=True).start()
            except RuntimeError:  # no thread to be had, or the interpreter ends
                self.abandon()
        super().__del__()

    def abandon(self) -> None:
        keep_for_ever(self.in_flight)  # the library goes on reading operands while the interpreter clears its modules
        super().abandon()

    def forget_done(self) -> None:
        """Launches of one operation end in order."""
        in_flight = self.in_flight
        while in_flight and in_flight[0].done():
            in_flight.popleft()


class Pending:
    """A launch under way. Dropping it does not stop the launch; the operation keeps the operands until it is over. Any thread."""

    __slots__ = ("_handle", "operands")

    def __init__(self, pointer: int, operands: Any) -> None:
        self._handle = Handle(pointer, lib.mk_pending_destroy)
        self.operands = operands

    def done(self) -> bool:
        """Whether the launch is over; never waits."""
        return bool(lib.mk_pending_done(self._handle.pointer))

    def wait(self, timeout: Optional[Seconds] = None) -> None:
        """Returns when the launch is over. `timeout` in seconds; None: until then, which the launch's own deadlines bound.
        Errors: DeadlineExceeded (not over within `timeout`; the launch goes on), or why the launch failed: this rank's own error,
        or the rank and node where it began."""
        pointer = self._handle.pointer
        wait_in_slices("launch", lambda ms: lib.mk_pending_wait(pointer, ms), self.done, timeout)


class Launch:
    """Operands of an operation that were checked once, for any number of launches. Made by bind(). The operands stay alive as long
    as it does and are read anew by every launch. One thread at a time."""

    __slots__ = ("_operation", "_arguments", "_options", "_by_reference", "_launch", "_enqueue", "_owners")

    def __init__(self, operation: "Operation", arguments: ctypes.Structure, owners: Any, options: _abi.LaunchOptions) -> None:
        self._operation = operation
        self._arguments = arguments
        self._owners = owners
        self._options = byref(options)
        self._by_reference = byref(arguments)
        self._launch = operation._launch
        self._enqueue = operation._enqueue

    def launch(self) -> Pending:
        """Starts one launch and returns at once. Launches of one group run one after the other, on a thread of the library. Every
        rank makes the same launches in the same order. Errors: why the group has failed."""
        handle = self._operation._handle
        if handle is None:
            raise closed(self._operation.what)
        pointer = c_void_p()
        status = self._launch(handle.pointer, self._by_reference, self._options, byref(pointer))
        if status:
            check(status)
        pending = Pending(pointer.value, self._owners)  # type: ignore[arg-type]
        handle.forget_done()
        handle.in_flight.append(pending)
        return pending

    def run(self, timeout: Optional[Seconds] = None) -> None:
        """launch() and Pending.wait()."""
        self.launch().wait(timeout)

    def enqueue(self, stream: int = 0) -> None:
        """executor="cuda": queues one launch on `stream` (a cudaStream_t of the session's GPU as an int; 0: its default stream).
        May be captured in a CUDA graph. This object, and with it the operands, must live until the stream is done. Over several
        nodes so must an Activity (Group.keep_active()). Every error but that of a closed operation fails the group."""
        handle = self._operation._handle
        if handle is None:
            raise closed(self._operation.what)
        if type(stream) is not int:
            stream = integer("stream", stream, 0, U64_MAX)
        status = self._enqueue(handle.pointer, self._by_reference, stream, self._options)
        if status:
            check(status)

    def set_addresses(self, **addresses: "int | tuple[int, ...]") -> None:
        """Replaces operands by addresses (more_b and more_c of a Gemm by tuples of them), and `tokens` of a Moe by another number, that
        the caller vouches for: nothing is checked and nothing kept alive."""
        for field, address in addresses.items():
            setattr(self._arguments, field, address)


class Operation:
    """A planned operation of one group. One thread at a time. Close operations in the same order on every rank; closing waits for
    launches in flight."""

    what = "operation"
    Arguments: Any  #: of the C ABI
    bind: Callable[..., Launch]  #: every operation has its own
    _launch: Any
    _enqueue: Any
    _concerns_others = True  #: not so for an operation of each rank alone

    def __init__(self, group: "Group", handle: OperationHandle, dtype: str, executor: str) -> None:
        self._group = group
        self._handle: Optional[OperationHandle] = handle
        self.dtype = dtype
        self.executor = executor
        self._gpu = group.device if executor == "cuda" else None

    def launch(self, *operands: Any, **options: Any) -> Pending:
        """bind(), which takes the same, and Launch.launch(). Operands that bind() refuses are a launch that this rank does not make:
        see Group.reject_launch()."""
        try:
            bound = self.bind(*operands, **options)
        except (Error, TypeError, ValueError) as error:
            if self._handle is not None and self._concerns_others:
                self._group.reject_launch(error)
            raise
        return bound.launch()

    def run(self, *operands: Any, timeout: Optional[Seconds] = None, **options: Any) -> None:
        """launch() and Pending.wait(timeout)."""
        self.launch(*operands, **options).wait(timeout)

    def _bind(self, arguments: ctypes.Structure, operands: "Sequence[tuple[Operand, Any]]", deadline: Optional[Seconds],
              compute_threads: int) -> Launch:
        owners = []
        for operand, source in operands:
            try:
                address, owner = operand.address_of(source, self._gpu)
            except Error as error:
                raise type(error)(f"{self.what}: {error.text}") from None
            field, _, index = operand.field.rstrip("]").partition("[")
            if index:
                getattr(arguments, field)[int(index)] = address
            else:
                setattr(arguments, field, address)
            owners.append(owner)
        options = _abi.LaunchOptions(
            deadline_ms=0 if deadline is None else milliseconds("deadline", deadline),
            compute_threads=integer("compute_threads", compute_threads, 0, 4096),
        )
        return Launch(self, arguments, tuple(owners), options)

    def status(self) -> Optional[Error]:
        """Once the stream is done (executor="cuda"): None, or why a launch that was queued failed; the group is over then. A Moe, a
        GroupedGemm or an Attention also says why a launch was refused; the group goes on then. Each refusal is told once. When several
        launches were refused since the last call of status(), it is the last one's."""
        handle = self._handle
        if handle is None:
            raise closed(self.what)
        return error_status(lib.mk_operation_status(handle.pointer))

    def expected_seconds(self) -> Optional[float]:
        """What a launch of executor="cuda" is expected to take, all ranks on time, from the rates of the machine that the plan
        assumes; None: unknown."""
        handle = self._handle
        if handle is None:
            raise closed(self.what)
        return lib.mk_operation_expected_seconds(handle.pointer) or None

    def close(self) -> None:
        """Waits for launches in flight and gives back workspace and lanes; a second call does nothing."""
        handle = self._handle
        if handle is None:
            return
        for pending in list(handle.in_flight):
            try:
                pending.wait()
            except Error:
                pass  # who wants to know has the Pending
        holder: "list[Optional[Handle]]" = [handle]
        del handle
        self._handle = None
        drop("closing an operation", holder)

    def __enter__(self) -> Any:
        if self._handle is None:
            raise closed(self.what)
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<mkernel.{type(self).__name__} {self.what}, {self.executor}{', closed' if self._handle is None else ''}>"
