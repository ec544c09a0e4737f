"""The operations: planned once on all ranks, then launched any number of times."""

import collections
import ctypes
import threading
from ctypes import byref, c_void_p
from typing import TYPE_CHECKING, Any, Callable, Optional, Sequence

from mkernel import _abi
from mkernel._calls import Handle, check, closed, drop, error_status, integer, milliseconds, wait_in_slices
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
    if value not in known:
        raise InvalidArgument(f"{field} = {value!r}; known are {', '.join(known)}")
    return known[value]


def block_range(total: int, parts: int, index: int) -> "tuple[int, int]":
    """(begin, end) of part `index` when `total` items are split into `parts`: how rows, experts and positions are spread over
    ranks."""
    return total * index // parts, total * (index + 1) // parts


def block_size(total: int, parts: int, index: int) -> int:
    begin, end = block_range(total, parts, index)
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
        if self.in_flight:
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

    def wait(self, timeout: Optional[float] = None) -> None:
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

    def run(self, timeout: Optional[float] = None) -> None:
        """launch() and Pending.wait()."""
        self.launch().wait(timeout)

    def enqueue(self, stream: int = 0) -> None:
        """executor="cuda": queues one launch on `stream` (a cudaStream_t of the session's GPU as an int; 0: its default stream).
        May be captured in a CUDA graph. This object, and with it the operands, must live until the stream is done. Over several
        nodes so must an Activity (Group.keep_active()). Every error but that of a closed operation fails the group."""
        handle = self._operation._handle
        if handle is None:
            raise closed(self._operation.what)
        status = self._enqueue(handle.pointer, self._by_reference, stream, self._options)
        if status:
            check(status)

    def set_addresses(self, **addresses: int) -> None:
        """Replaces operands by addresses, and `tokens` of a Moe by another number, that the caller vouches for: nothing is checked
        and nothing kept alive."""
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

    def __init__(self, group: "Group", handle: OperationHandle, dtype: str, executor: str) -> None:
        self._group = group
        self._handle: Optional[OperationHandle] = handle
        self.dtype = dtype
        self.executor = executor
        self._gpu = group.device if executor == "cuda" else None

    def launch(self, *operands: Any, **options: Any) -> Pending:
        """bind(), which takes the same, and Launch.launch()."""
        return self.bind(*operands, **options).launch()

    def run(self, *operands: Any, timeout: Optional[float] = None, **options: Any) -> None:
        """launch() and Pending.wait(timeout)."""
        self.launch(*operands, **options).wait(timeout)

    def _bind(self, arguments: ctypes.Structure, operands: "Sequence[tuple[Operand, Any]]", deadline: Optional[float],
              compute_threads: int) -> Launch:
        owners = []
        for operand, source in operands:
            try:
                address, owner = operand.address_of(source, self._gpu)
            except Error as error:
                raise type(error)(f"{self.what}: {error.text}") from None
            setattr(arguments, operand.field, address)
            owners.append(owner)
        options = _abi.LaunchOptions(
            deadline_ms=0 if deadline is None else milliseconds("deadline", deadline),
            compute_threads=integer("compute_threads", compute_threads, 0, 4096),
        )
        return Launch(self, arguments, tuple(owners), options)

    def status(self) -> Optional[Error]:
        """Once the stream is done (executor="cuda"): None, or why a launch that was queued failed; the group is over then. A Moe or
        a GroupedGemm also says why a launch was refused; the group goes on then. Each refusal is told once. When several launches were
        refused since the last call of status(), it is the last one's."""
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


class Gemm(Operation):
    """AllGather+GEMM, GEMM+ReduceScatter or GEMM+AllReduce. With `rows` of rank r being block_range(m, world_size, r):

    ag_gemm   c[m, n]    = allgather(a[rows, k]) x b[k, n]; gathered[m, k], if given, gets allgather(a)
    gemm_rs   c[rows, n] = this rank's rows of the sum over ranks of a[m, k] x b[k, n]
    gemm_ar   c[m, n]    = the sum over ranks of a[m, k] x b[k, n]

    b lies [k, n] with b_layout="row_major" and [n, k] with "column_major". All are dense and row-major, of the operation's
    dtype; bf16 comes as uint16, as ml_dtypes.bfloat16 or by DLPack."""

    Arguments = _abi.GemmArguments
    _launch = lib.mk_gemm_launch
    _enqueue = lib.mk_gemm_enqueue

    def __init__(self, group: "Group", handle: OperationHandle, kind: str, shape: _abi.GemmShape, dtype: str, executor: str) -> None:
        super().__init__(group, handle, dtype, executor)
        m, n, k = shape.m, shape.n, shape.k
        rows = block_size(m, group.world_size, group.rank)
        self.what = kind
        self.a = Operand("a", dtype, (rows if kind == "ag_gemm" else m, k))
        self.b = Operand("b", dtype, (k, n) if shape.b_layout == _abi.ROW_MAJOR else (n, k))
        self.c = Operand("c", dtype, (rows if kind == "gemm_rs" else m, n), written=True)
        self.gathered = Operand("gathered", dtype, (m, k), written=True)

    def bind(self, a: Any, b: Any, c: Any, *, gathered: Any = None, deadline: Optional[float] = None,
             compute_threads: int = 0) -> Launch:
        """Checks the operands, for any number of launches. `deadline` in seconds: of every single wait of a launch; None: 30.
        `compute_threads`: of the cpu executor; 0: the hardware's threads / ranks of this node. Errors: InvalidArgument naming
        field, value and limit; TypeError."""
        operands = [(self.a, a), (self.b, b), (self.c, c)]
        if gathered is not None:
            if self.what != "ag_gemm":
                raise InvalidArgument(f"{self.what}: gathered is given, and only ag_gemm gathers rows")
            operands.append((self.gathered, gathered))
        return self._bind(self.Arguments(), operands, deadline, compute_threads)


class Moe(Operation):
    """MoE dispatch+GEMM: y[t] = sum over j of weights[t, j] * expert[topk[t, j]](x[t]). Experts are spread over ranks by
    block_range(experts, world_size, rank), `mine` of them here.

    x [tokens, hidden], topk [tokens, topk] int32 (expert numbers, distinct within a row), weights [tokens, topk] float32,
    y [tokens, n]. intermediate = 0: w1 [mine, hidden, n], expert(x) = x w1. Else w1 [mine, hidden, 2 * intermediate],
    w2 [mine, intermediate, n], expert(x) = (silu(g) * u) w2 with [g | u] = x w1. With w1_up, w1 [mine, hidden, intermediate] is
    the half of g and w1_up that of u. w_layout="column_major" has the matrices of every expert transposed, as PyTorch keeps
    weights: w1 [mine, n or 2 * intermediate, hidden], w2 [mine, n, intermediate]. With weights_on_input y[t] = sum over j of
    expert[topk[t, j]](weights[t, j] * x[t]), where the product is rounded to the type of x.

    Every rank refuses a launch with the same error when topk has a bad entry or weights a NaN on any of them (InvalidArgument
    names the rank and the entry), or more rows come to a rank than `capacity` (ResourceExhausted). y stays as it was, and the group
    goes on. A launch that was queued on a stream is refused on the GPU, and status() tells it."""

    what = "moe_dispatch_gemm"
    Arguments = _abi.MoeArguments
    _launch = lib.mk_moe_launch
    _enqueue = lib.mk_moe_enqueue

    def __init__(self, group: "Group", handle: OperationHandle, shape: _abi.MoeShape, dtype: str, executor: str) -> None:
        super().__init__(group, handle, dtype, executor)
        self._shape = shape
        self._mine = block_size(shape.experts, group.world_size, group.rank)
        self.w1 = self._weights("w1", shape.hidden, 2 * shape.intermediate or shape.n)
        self.w2 = self._weights("w2", shape.intermediate, shape.n) if shape.intermediate else None

    def _weights(self, field: str, k: int, n: int) -> Operand:
        row_major = self._shape.w_layout == _abi.ROW_MAJOR
        return Operand(field, self.dtype, (self._mine, k, n) if row_major else (self._mine, n, k))

    def bind(self, x: Any, topk: Any, weights: Any, w1: Any, w2: Any, y: Any, *, w1_up: Any = None,
             tokens: Optional[int] = None, deadline: Optional[float] = None, compute_threads: int = 0) -> Launch:
        """As Gemm.bind(). `tokens`: of this rank, at most max_tokens and free to differ between ranks and launches; None: the
        rows of x. w2 is None when intermediate = 0. `w1_up`: the second half of w1; None: w1 holds both."""
        shape = self._shape
        if tokens is None:
            if not getattr(x, "shape", ()):
                raise InvalidArgument(f"{self.what}: tokens is needed, because x has no shape that says it")
            tokens = x.shape[0]
        tokens = integer(f"{self.what}: tokens", tokens, 0, shape.max_tokens)
        if w1_up is not None and not shape.intermediate:
            raise InvalidArgument(f"{self.what}: w1_up must be None, because intermediate = 0")
        operands = [
            (Operand("x", self.dtype, (tokens, shape.hidden)), x),
            (Operand("topk", "i32", (tokens, shape.topk)), topk),
            (Operand("weights", "f32", (tokens, shape.topk)), weights),
            (self.w1 if w1_up is None else self._weights("w1", shape.hidden, shape.intermediate), w1),
            (Operand("y", self.dtype, (tokens, shape.n), written=True), y),
        ]
        if self.w2 is not None:
            operands.append((self.w2, w2))
        elif w2 is not None:
            raise InvalidArgument(f"{self.what}: w2 must be None, because intermediate = 0")
        if w1_up is not None:
            operands.append((self._weights("w1_up", shape.hidden, shape.intermediate), w1_up))
        return self._bind(self.Arguments(tokens=tokens), operands, deadline, compute_threads)


class GroupedGemm(Operation):
    """The product of a rank alone: c[rows of group g] = a[rows of group g] x b[g].

    a [max_rows, k] has its rows sorted by group; ends [groups] int32 says behind which row each group ends, as `offs` of PyTorch's
    grouped products; c [max_rows, n]. b is [groups, k, n] with b_layout="row_major" and [groups, n, k] with "column_major".

    A launch is refused when a group ends before it begins or beyond max_rows (InvalidArgument names it). c stays as it was, and the
    group goes on. A launch that was queued on a stream is refused on the GPU, and status() tells it. `ends` is read while the launch
    runs, also by every replay of a graph."""

    what = "grouped_gemm"
    Arguments = _abi.GroupedGemmArguments
    _launch = lib.mk_grouped_gemm_launch
    _enqueue = lib.mk_grouped_gemm_enqueue

    def __init__(self, group: "Group", handle: OperationHandle, shape: _abi.GroupedGemmShape, dtype: str, executor: str) -> None:
        super().__init__(group, handle, dtype, executor)
        rows, k, n, groups = shape.max_rows, shape.k, shape.n, shape.groups
        self.a = Operand("a", dtype, (rows, k))
        self.ends = Operand("ends", "i32", (groups,))
        self.b = Operand("b", dtype, (groups, k, n) if shape.b_layout == _abi.ROW_MAJOR else (groups, n, k))
        self.c = Operand("c", dtype, (rows, n), written=True)

    def bind(self, a: Any, ends: Any, b: Any, c: Any, *, deadline: Optional[float] = None, compute_threads: int = 0) -> Launch:
        """As Gemm.bind()."""
        operands = ((self.a, a), (self.ends, ends), (self.b, b), (self.c, c))
        return self._bind(self.Arguments(), operands, deadline, compute_threads)


class RingAttention(Operation):
    """Attention over a sequence that all ranks hold together: q, out [batch, positions, heads, head_dim], k, v [batch, positions,
    kv_heads, head_dim]. Full: `positions` is part `rank` of block_range(sequence, world_size, .). Causal: parts `rank` and
    2 * world_size - 1 - rank of block_range(sequence, 2 * world_size, .), in that order (zigzag)."""

    what = "ring_attention"
    Arguments = _abi.AttentionArguments
    _launch = lib.mk_ring_attention_launch
    _enqueue = lib.mk_ring_attention_enqueue

    def __init__(self, group: "Group", handle: OperationHandle, shape: _abi.AttentionShape, dtype: str, executor: str) -> None:
        super().__init__(group, handle, dtype, executor)
        world, rank = group.world_size, group.rank
        if shape.causal:
            parts = (rank, 2 * world - 1 - rank)
            self.positions = sum(block_size(shape.sequence, 2 * world, part) for part in parts)
        else:
            self.positions = block_size(shape.sequence, world, rank)
        of_q = (shape.batch, self.positions, shape.heads, shape.head_dim)
        of_k = (shape.batch, self.positions, shape.kv_heads, shape.head_dim)
        self.q, self.k, self.v = Operand("q", dtype, of_q), Operand("k", dtype, of_k), Operand("v", dtype, of_k)
        self.out = Operand("out", dtype, of_q, written=True)

    def bind(self, q: Any, k: Any, v: Any, out: Any, *, deadline: Optional[float] = None, compute_threads: int = 0) -> Launch:
        """As Gemm.bind()."""
        operands = ((self.q, q), (self.k, k), (self.v, v), (self.out, out))
        return self._bind(self.Arguments(), operands, deadline, compute_threads)
