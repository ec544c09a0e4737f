"""Membership of a group: collective calls, buffers, puts, and the operations."""

import ctypes
from ctypes import byref, c_uint32, c_uint64
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional, Sequence, Union

from mkernel import _abi
from mkernel._arguments import U32_MAX, U64_MAX, Seconds, boolean, integer, octets
from mkernel._arguments import text as in_c
from mkernel._calls import Handle, check, closed, create, drop, error_status, interruptible, wait_in_slices
from mkernel._library import lib
from mkernel._operands import memory_of
from mkernel._operation import DTYPES, LAYOUTS, OperationHandle, choice
from mkernel._shapes import attention_shape, gemm_shape, options, sizes
from mkernel.activity import Activity
from mkernel.attention import Attention, AttentionBackward, RingAttention, RingAttentionBackward
from mkernel.buffers import HostBuffer, SymmetricBuffer
from mkernel.errors import Code, Error, FailedPrecondition, InvalidArgument
from mkernel.operations import Gemm, GroupedGemm, Moe

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from mkernel.session import Session


class RankInfo(NamedTuple):
    """Where a rank lives."""

    node: int  #: dense index of its node
    local_rank: int  #: dense index among the ranks of that node
    node_name: str


class Group:
    """One rank's membership of a group; made by Session.join(). An error of any rank's operation, or the loss of a rank, fails the
    group for all, and every wait of every rank says why.

    Collective calls are made by every rank in the same order, one at a time per group; they wait for all ranks, at most `timeout`
    of join(), and a collective call that runs into it fails the group. Ctrl-C ends the wait at once, but not the call, which goes
    on until its time limit; until then further collective calls are refused, and fail() ends it for all ranks. Errors of all of
    them: InvalidArgument (ranks that make different calls, by name), DeadlineExceeded (who is missing), why the group failed.

    May be used from any thread. The group is left when it and all that was made from it are closed or gone."""

    def __init__(self, session: "Session", handle: Handle, name: str, lanes: int, timeout: float) -> None:
        self._handle: Optional[Handle] = handle
        self.session = session  #: that joined
        self.left_behind: Any = None
        self.name = name
        self.lanes = lanes  #: channels per ordered pair of ranks
        self.timeout = timeout  #: seconds, of every collective call and of a put that is given no other
        self.device = session.device  #: GPU of the session, -1 = host memory only
        self.rank: int = lib.mk_group_rank(handle.pointer)
        self.world_size: int = lib.mk_group_world_size(handle.pointer)
        self.node_count: int = lib.mk_group_node_count(handle.pointer)

    def _alive(self) -> Handle:
        handle = self._handle
        if handle is None or handle.pointer is None:  # the second while the interpreter ends
            raise closed(f"group '{self.name}'")
        return handle

    def _for_collective(self) -> Handle:
        handle = self._alive()
        left = self.left_behind
        if left is not None and left.running:
            raise FailedPrecondition(
                f"group '{self.name}': {left.what}, whose wait was interrupted, is still under way; it ends at its time limit, or "
                "with fail()"
            )
        self.left_behind = None
        return handle

    def _create(self, what: str, make: Callable[..., int], *arguments: Any, destroy: Callable[[int], None],
                kind: type = Handle) -> Any:
        # The body of create() keeps the handle itself, not only its pointer.
        handle = self._for_collective()
        return create(what, lambda *rest: make(handle.pointer, *rest), *arguments, destroy=destroy, owner=self, kind=kind)

    # ---- about the group

    def rank_info(self, rank: int) -> RankInfo:
        """Where `rank` lives. Errors: OutOfRange."""
        info = _abi.RankInfo()
        check(lib.mk_group_rank_info(self._alive().pointer, integer("rank", rank, 0, U32_MAX), byref(info)))
        return RankInfo(info.node, info.local_rank, info.node_name.decode(errors="replace"))

    def status(self) -> Optional[Error]:
        """None, or why the group failed: which rank, on which node, what happened. Not raised."""
        return error_status(lib.mk_group_status(self._alive().pointer))

    def fail(self, text: str, code: Code = Code.ABORTED) -> None:
        """Tells every rank that this one cannot go on. The group is over for all of them."""
        number = integer("code", code, 1, max(Code))
        shown = text.replace("\0", "\\0") if isinstance(text, str) else text  # a failure is reported, whatever its text holds
        handle, said = self._alive(), in_c("text", shown)
        interruptible("fail", lambda: check(lib.mk_group_fail(handle.pointer, number, said)))

    def reject_launch(self, why: BaseException) -> None:
        """This rank does not make the launch that comes next, because of `why`: an error of its operands. A launch of another rank
        with this number ends with that reason, and the group fails, unless all ranks reject it. launch() and run() of an operation
        call it for operands that they refuse; bind() does not, for nothing is launched there."""
        handle = self._handle
        if handle is None:
            return
        code = why.code if isinstance(why, Error) and why.code else Code.INVALID_ARGUMENT
        text = f"{type(why).__name__}: {getattr(why, 'text', why)}".replace("\0", "\\0").encode(errors="replace")
        interruptible("reject_launch", lambda: lib.mk_group_reject_launch(handle.pointer, int(code), text))

    def barrier(self) -> None:
        """**Collective**. Returns when every rank is here."""
        handle = self._for_collective()
        interruptible("barrier", lambda: check(lib.mk_barrier(handle.pointer)), self)

    def exchange(self, mine: "ReadableBuffer") -> "list[bytes]":
        """**Collective**. Returns the contributions of all ranks, by rank: bytes-like objects of at most 448 bytes, the same number on
        every rank."""
        handle, sent = self._for_collective(), octets("mine", mine)
        size = len(sent)
        if size > _abi.MAX_EXCHANGE_BYTES:
            raise InvalidArgument(f"exchange of {size} bytes, at most {_abi.MAX_EXCHANGE_BYTES}")
        board = ctypes.create_string_buffer(max(size * self.world_size, 1))
        interruptible("exchange", lambda: check(lib.mk_exchange(handle.pointer, sent, size, board)), self)
        return [board.raw[rank * size : (rank + 1) * size] for rank in range(self.world_size)]

    # ---- buffers

    def symmetric(self, nbytes: int) -> SymmetricBuffer:
        """**Collective**. The same `nbytes` (above 0) of zeroed host memory on every rank. Errors: InvalidArgument (sizes that
        differ, naming both ranks), ResourceExhausted (memory, region capacity)."""
        nbytes = integer("nbytes", nbytes, 0, U64_MAX)
        return self._symmetric("symmetric", lib.mk_symmetric_create, nbytes, None)

    def symmetric_gpu(self, nbytes: int) -> SymmetricBuffer:
        """**Collective**. The same in the memory of each rank's GPU (`device` of connect()). Errors also: Unimplemented (libmkernel
        was built without CUDA), FailedPrecondition (no GPU, or one that cannot share memory)."""
        nbytes = integer("nbytes", nbytes, 0, U64_MAX)
        return self._symmetric("symmetric_gpu", lib.mk_symmetric_gpu_create, nbytes, self.device)

    def register_gpu(self, source: Any, nbytes: Optional[int] = None) -> SymmetricBuffer:
        """**Collective**. The same over memory that exists on this rank's GPU: an object with __dlpack__ (a tensor of PyTorch), or
        an address with `nbytes`. The memory must stay until the first collective call after the buffer was closed has returned:
        until then peers may store into it. The buffer keeps `source` alive, but not longer than that. Errors also:
        FailedPrecondition (memory that CUDA IPC cannot share, and what to do instead)."""
        owner, address = None, source
        if hasattr(type(source), "__index__") and not hasattr(source, "__dlpack__"):
            address = integer("source", source, 0, U64_MAX)
        else:
            memory = memory_of("source", source)
            address, owner = memory.address, memory.owner
            nbytes = memory.nbytes if nbytes is None else nbytes
        nbytes = integer("nbytes", nbytes, 0, U64_MAX)
        buffer = self._symmetric("register_gpu", lib.mk_symmetric_gpu_register, address, nbytes, self.device)
        buffer.source = owner
        return buffer

    def _symmetric(self, what: str, make: Callable[..., int], *arguments: Any) -> SymmetricBuffer:
        *passed, gpu = arguments
        handle = self._create(what, make, *passed, destroy=lib.mk_symmetric_destroy)
        data, region = lib.mk_symmetric_data(handle.pointer), lib.mk_symmetric_region(handle.pointer)
        return SymmetricBuffer(self, handle, passed[-1], data, region, gpu)

    def host_buffer(self, nbytes: int) -> HostBuffer:
        """Zeroed host memory of this rank alone that puts may read from and write into."""
        nbytes = integer("nbytes", nbytes, 0, U64_MAX)
        return self._host("host_buffer", lib.mk_host_buffer_create, nbytes)

    def register_memory(self, memfd: int, nbytes: int, *, offset: int = 0) -> HostBuffer:
        """The same over a memfd that is sealed against shrinking (os.memfd_create with MFD_ALLOW_SEALING, then F_SEAL_SHRINK):
        `nbytes` from `offset`, which is a multiple of the page size. The fd may be closed at once. The daemon seals the
        memfd (F_SEAL_FUTURE_WRITE): mappings that are there go on, but write(), holes and new mappings for writing are refused from
        then on, so map it before. It may be registered again until the session ends; its memory stays until then."""
        memfd = integer("memfd", memfd, 0, 2**31 - 1)
        offset, nbytes = integer("offset", offset, 0, U64_MAX), integer("nbytes", nbytes, 0, U64_MAX)
        return self._host("register_memory", lib.mk_host_buffer_register, memfd, offset, nbytes)

    def _host(self, what: str, make: Callable[..., int], *arguments: Any) -> HostBuffer:
        group = self._alive()
        handle = create(what, lambda *rest: make(group.pointer, *rest), *arguments, destroy=lib.mk_host_buffer_destroy)
        data, region = lib.mk_host_buffer_data(handle.pointer), lib.mk_host_buffer_region(handle.pointer)
        return HostBuffer(self, handle, arguments[-1], data, region, None)

    # ---- puts

    def reserve_lanes(self, count: int = 1) -> int:
        """**Collective**. Takes `count` lanes for own puts, for the life of this group, and returns the first, the same on every
        rank. Their counts start at 0. Errors: ResourceExhausted, saying how many are left and how to get more."""
        handle, count, first = self._for_collective(), integer("count", count, 0, U32_MAX), c_uint32()
        interruptible("reserve_lanes", lambda: check(lib.mk_reserve_lanes(handle.pointer, count, byref(first))), self)
        return first.value

    def put(self, target: int, lane: int, source: Union[SymmetricBuffer, HostBuffer], *, region: int, nbytes: int,
            offset: int = 0, region_offset: int = 0, timeout: Optional[Seconds] = None) -> int:
        """Puts `nbytes` from `offset` of `source` to `region_offset` of region `region` of rank `target`, on a reserved lane.
        Returns at once with the number n of the put on its channel (target, lane), from 1: the source may be overwritten once
        wait_completed(target, lane, n) has returned. One thread at a time per lane. Errors: InvalidArgument, OutOfRange,
        DeadlineExceeded, why the group failed.

        While the daemon has not yet taken so many earlier puts that the ring of them has room again, put() waits, at most `timeout`
        seconds (None: `timeout` of join()). DeadlineExceeded means that nothing was put; the group goes on, and the next put has the
        number that this one would have had. Ctrl-C ends the wait. An interrupted put was made as a whole or not at all, and puts()
        says which."""
        group, buffer = self._alive(), source._alive()
        call = lib.mk_put_host if isinstance(source, HostBuffer) else lib.mk_put
        arguments = (
            group.pointer,
            integer("target", target, 0, U32_MAX),
            integer("lane", lane, 0, U32_MAX),
            buffer.pointer,
            integer("offset", offset, 0, U64_MAX),
            integer("region", region, 0, U32_MAX),
            integer("region_offset", region_offset, 0, U64_MAX),
            integer("nbytes", nbytes, 0, U64_MAX),
        )
        return self._put("put", group, call, arguments, timeout)

    def signal(self, target: int, lane: int, *, timeout: Optional[Seconds] = None) -> int:
        """A put of nothing: raises the arrival count alone. Returns its number, and waits for room, as put() does."""
        group = self._alive()
        arguments = (group.pointer, integer("target", target, 0, U32_MAX), integer("lane", lane, 0, U32_MAX))
        return self._put("signal", group, lib.mk_signal, arguments, timeout)

    def _put(self, what: str, group: Handle, call: Callable[..., int], arguments: "tuple[Any, ...]",
             timeout: Optional[Seconds]) -> int:
        number = c_uint64()
        if timeout is None and call(*arguments, 1, byref(number)) == Code.OK:  # nearly always there is room
            return number.value
        wait_in_slices(
            what,
            lambda ms: call(*arguments, ms, byref(number)),
            lambda: lib.mk_group_status(group.pointer) != Code.OK,
            self.timeout if timeout is None else timeout,
        )
        return number.value

    def puts(self, target: int, lane: int) -> int:
        """How many puts of channel (this rank -> target, lane) were made; 0 on a lane that is not reserved. Never waits."""
        return self._count(lib.mk_puts, "target", target, lane)

    def wait_arrival(self, source: int, lane: int, count: int, timeout: Seconds = 30.0) -> None:
        """Returns once the first `count` puts of channel (source -> this rank, lane) are visible here. `timeout` in seconds.
        Errors: DeadlineExceeded (counts expected and seen; the group goes on), why the group failed."""
        self._wait("wait_arrival", lib.mk_wait_arrival, source, lane, count, timeout)

    def wait_completed(self, target: int, lane: int, count: int, timeout: Seconds = 30.0) -> None:
        """Returns once the first `count` puts of channel (this rank -> target, lane) have left their sources. Otherwise as
        wait_arrival()."""
        self._wait("wait_completed", lib.mk_wait_completed, target, lane, count, timeout)

    def _wait(self, what: str, call: Callable[..., int], peer: int, lane: int, count: int, timeout: Seconds) -> None:
        handle = self._alive()
        peer, lane = integer("rank", peer, 0, U32_MAX), integer("lane", lane, 0, U32_MAX)
        count = integer("count", count, 0, U64_MAX)
        wait_in_slices(
            what,
            lambda ms: call(handle.pointer, peer, lane, count, ms),
            lambda: lib.mk_group_status(handle.pointer) != Code.OK,
            timeout,
        )

    def arrivals(self, source: int, lane: int) -> int:
        """How many puts of channel (source -> this rank, lane) have arrived; 0 on a lane that is not reserved. Never waits."""
        return self._count(lib.mk_arrivals, "source", source, lane)

    def _count(self, call: Callable[..., int], field: str, peer: int, lane: int) -> int:
        count = c_uint64()
        peer, lane = integer(field, peer, 0, U32_MAX), integer("lane", lane, 0, U32_MAX)
        check(call(self._alive().pointer, peer, lane, byref(count)))
        return count.value

    def keep_active(self) -> Activity:
        """While the result lives (or its `with` block runs), the daemon polls this session's rings instead of sleeping: for
        latency, at the price of cores. Launches that are queued on a stream and put to other nodes need one."""
        group = self._alive()
        make = lib.mk_activity_create
        return Activity(create("keep_active", lambda out: make(group.pointer, out), destroy=lib.mk_activity_destroy))

    # ---- operations

    def ag_gemm(self, m: int, n: int, k: int, *, dtype: str = "bf16", b_layout: str = "row_major", executor: str = "cpu",
                more_n: Sequence[int] = (), comm_ctas: int = 0, sms: int = 0, nic_gbytes: float = 0.0,
                machine: Optional[str] = None) -> Gemm:
        """**Collective**. Plans AllGather+GEMM on all ranks and makes its workspace: c[m, n] = allgather(a) x b; see Gemm. `more_n`:
        columns of further b, at most three, which the same rows are multiplied with. `dtype` "bf16" or "f16", `b_layout` "row_major"
        or "column_major", `executor` "cpu" (threads, host memory) or "cuda" (a kernel on the session's GPU). The last four override
        the plan of the cuda executor (GemmPlanOptions in mkernel/ops.h); 0 or None takes the plan's choice. Errors: InvalidArgument
        (a field, or two ranks that differ, naming both), ResourceExhausted (lanes or regions: what is left), Unimplemented."""
        plan = options(executor, comm_ctas, sms, nic_gbytes, machine)
        return self._gemm("ag_gemm", lib.mk_ag_gemm_create, gemm_shape(m, n, k, dtype, b_layout, more_n), dtype, executor, plan)

    def gemm_rs(self, m: int, n: int, k: int, *, dtype: str = "bf16", b_layout: str = "row_major", executor: str = "cpu",
                comm_ctas: int = 0, sms: int = 0, nic_gbytes: float = 0.0, machine: Optional[str] = None) -> Gemm:
        """**Collective**. GEMM+ReduceScatter, as ag_gemm()."""
        plan = options(executor, comm_ctas, sms, nic_gbytes, machine)
        return self._gemm("gemm_rs", lib.mk_gemm_rs_create, gemm_shape(m, n, k, dtype, b_layout), dtype, executor, plan)

    def gemm_ar(self, m: int, n: int, k: int, *, dtype: str = "bf16", b_layout: str = "row_major", executor: str = "cpu",
                comm_ctas: int = 0, sms: int = 0, nic_gbytes: float = 0.0, machine: Optional[str] = None) -> Gemm:
        """**Collective**. GEMM+AllReduce, as ag_gemm()."""
        plan = options(executor, comm_ctas, sms, nic_gbytes, machine)
        return self._gemm("gemm_ar", lib.mk_gemm_ar_create, gemm_shape(m, n, k, dtype, b_layout), dtype, executor, plan)

    def _gemm(self, kind: str, make: Callable[..., int], shape: _abi.GemmShape, dtype: str, executor: str,
              plan: _abi.OperationOptions) -> Gemm:
        return Gemm(self, self._operation(kind, make, shape, plan), kind, shape, dtype, executor)

    def moe(self, *, max_tokens: int, hidden: int, n: int, experts: int, topk: int, intermediate: int = 0, dtype: str = "bf16",
            executor: str = "cpu", capacity: int = 0, w_layout: str = "row_major", comm_ctas: int = 0, sms: int = 0,
            machine: Optional[str] = None, weights_on_input: bool = False, shared_intermediate: int = 0) -> Moe:
        """**Collective**. Plans MoE dispatch+GEMM; see Moe. `max_tokens` is that of one rank. `capacity`: rows that a rank takes
        in a launch for its experts, those of each counted as whole 64; 0: as many as all ranks can send, which is what its memory
        is made for then. `w_layout`: of every expert's matrices, as b_layout. `weights_on_input` and
        `shared_intermediate`: see Moe. `comm_ctas`, `sms` and `machine` as those of ag_gemm(), also errors."""
        extents = {"max_tokens": max_tokens, "hidden": hidden, "n": n, "intermediate": intermediate, "experts": experts, "topk": topk,
                   "capacity": capacity, "shared_intermediate": shared_intermediate}
        layout = choice("w_layout", w_layout, LAYOUTS)
        shape = _abi.MoeShape(dtype=choice("dtype", dtype, DTYPES), w_layout=layout, weights_on_input=boolean("weights_on_input", weights_on_input),
                              **sizes(extents))
        plan = options(executor, comm_ctas, sms, machine=machine)
        handle = self._operation("moe_dispatch_gemm", lib.mk_moe_create, shape, plan)
        return Moe(self, handle, shape, dtype, executor)

    def grouped_gemm(self, *, max_rows: int, k: int, n: int, groups: int, dtype: str = "bf16", b_layout: str = "row_major",
                     executor: str = "cpu", sms: int = 0, machine: Optional[str] = None) -> GroupedGemm:
        """**Collective**. Plans a grouped GEMM of each rank alone; see GroupedGemm. The last two as those of ag_gemm(), also
        errors."""
        layout = choice("b_layout", b_layout, LAYOUTS)
        shape = _abi.GroupedGemmShape(dtype=choice("dtype", dtype, DTYPES), b_layout=layout,
                                      **sizes({"max_rows": max_rows, "k": k, "n": n, "groups": groups}))
        plan = options(executor, sms=sms, machine=machine)
        return GroupedGemm(self, self._operation("grouped_gemm", lib.mk_grouped_gemm_create, shape, plan), shape, dtype, executor)

    def attention(self, *, batch: int = 1, sequence: int, heads: int, head_dim: int, kv_heads: Optional[int] = None,
                  keys: Optional[int] = None, causal: bool = False, scale: float = 0.0, max_sequences: Optional[int] = None,
                  window: "tuple[int, int]" = (-1, -1), dtype: str = "bf16", executor: str = "cpu", sms: int = 0,
                  machine: Optional[str] = None) -> Attention:
        """**Collective**. Plans attention of each rank alone; see Attention. `kv_heads`: None = heads; `keys`: None = sequence;
        `scale`: 0 = 1 / sqrt(head_dim). `max_sequences`: at most so many sequences of different lengths are packed, `sequence` and
        `keys` are then the rows of all of them at most; None: all have one length. `window`: (left, right), the keys before and
        behind a query's own position that it sees, -1 = all. The last two as those of ag_gemm(), also errors."""
        shape = attention_shape(batch, sequence, heads, head_dim, kv_heads, keys, causal, scale, dtype, max_sequences, window)
        plan = options(executor, sms=sms, machine=machine)
        return Attention(self, self._operation("attention", lib.mk_attention_create, shape, plan), shape, dtype, executor)

    def attention_backward(self, *, batch: int = 1, sequence: int, heads: int, head_dim: int, kv_heads: Optional[int] = None,
                           keys: Optional[int] = None, causal: bool = False, scale: float = 0.0, max_sequences: Optional[int] = None,
                           window: "tuple[int, int]" = (-1, -1), dtype: str = "bf16", executor: str = "cpu", sms: int = 0,
                           machine: Optional[str] = None) -> AttentionBackward:
        """**Collective**. Plans the backward pass of attention(), with its arguments and errors; see AttentionBackward."""
        shape = attention_shape(batch, sequence, heads, head_dim, kv_heads, keys, causal, scale, dtype, max_sequences, window)
        plan = options(executor, sms=sms, machine=machine)
        handle = self._operation("attention_backward", lib.mk_attention_backward_create, shape, plan)
        return AttentionBackward(self, handle, shape, dtype, executor)

    def ring_attention(self, *, batch: int = 1, sequence: int, heads: int, head_dim: int, kv_heads: Optional[int] = None,
                       causal: bool = False, scale: float = 0.0, max_sequences: Optional[int] = None, dtype: str = "bf16",
                       executor: str = "cpu", comm_ctas: int = 0, sms: int = 0, machine: Optional[str] = None) -> RingAttention:
        """**Collective**. Plans ring attention over `sequence` positions of all ranks together; see RingAttention. `kv_heads` and
        `scale` as those of attention(). `max_sequences`: at most so many sequences of different lengths are packed, `sequence` is then
        the number of rows of all ranks, a multiple of the world size; None: it is one sequence. cuda: head_dim 64 or 128; `comm_ctas`
        CTAs push keys and values before they compute, 0: by machine. The last two as those of ag_gemm(), also errors."""
        shape = attention_shape(batch, sequence, heads, head_dim, kv_heads, None, causal, scale, dtype, max_sequences)
        plan = options(executor, comm_ctas=comm_ctas, sms=sms, machine=machine)
        handle = self._operation("ring_attention", lib.mk_ring_attention_create, shape, plan)
        return RingAttention(self, handle, shape, dtype, executor)

    def ring_attention_backward(self, *, batch: int, sequence: int, heads: int, head_dim: int, kv_heads: Optional[int] = None,
                                causal: bool = False, scale: float = 0.0, dtype: str = "bf16", executor: str = "cpu",
                                comm_ctas: int = 0, sms: int = 0, machine: Optional[str] = None) -> RingAttentionBackward:
        """**Collective**. Plans the backward pass of ring_attention(), with its arguments and errors; see RingAttentionBackward."""
        shape = attention_shape(batch, sequence, heads, head_dim, kv_heads, None, causal, scale, dtype)
        plan = options(executor, comm_ctas=comm_ctas, sms=sms, machine=machine)
        handle = self._operation("ring_attention_backward", lib.mk_ring_attention_backward_create, shape, plan)
        return RingAttentionBackward(self, handle, shape, dtype, executor)

    def _operation(self, what: str, make: Callable[..., int], shape: Any, options: _abi.OperationOptions) -> OperationHandle:
        handle = self._create(what, make, shape, options, destroy=lib.mk_operation_destroy, kind=OperationHandle)
        assert isinstance(handle, OperationHandle)
        return handle

    # ---- end

    def close(self) -> None:
        """Leaves the group once all that was made from it is closed too; a second call does nothing."""
        holder, self._handle = [self._handle], None
        drop("leaving a group", holder)

    def __enter__(self) -> "Group":
        self._alive()
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<mkernel.Group '{self.name}' rank {self.rank} of {self.world_size}{', closed' if self._handle is None else ''}>"
