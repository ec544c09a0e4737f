"""Groups of mkernel for process groups of c10d."""

import contextlib
import ctypes
import os
import secrets
import threading
import weakref
from collections import Counter
from typing import Any, Iterator, NamedTuple, Optional

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from mkernel._arguments import U32_MAX, Device, Path, Seconds, integer, ordinal, path, seconds
from mkernel._version import __version__
from mkernel.errors import Error, FailedPrecondition, InvalidArgument, NotFound
from mkernel.group import Activity, Group
from mkernel.session import DEFAULT_SOCKET, Session, connect
from mkernel.torch import _extension
from mkernel.torch._options import fallbacks, forget, remembered
from mkernel.torch._plans import PlanCache
from mkernel.torch._rendezvous import Rendezvous


_PLANS = 48  # that a group keeps, unless init() is given another number

# torch has no public names for these.
resolve: Any = getattr(c10d, "_resolve_process_group")
raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", lambda device: torch.cuda.current_stream(device).cuda_stream)


class NotInitialized(FailedPrecondition):
    """There is no group of mkernel for a process group."""

    reason = "init() was not called for the process group"


class Membership:
    """This process in one group: the group of mkernel, its plans, and what was decided about operands seen before. `lock` is held
    during a call: one at a time per group."""

    def __init__(self, group: Group, world: Any, capacity: int) -> None:
        self.group = group
        self.world_size, self.rank, self.device = group.world_size, group.rank, group.device
        self.plans = PlanCache(group, capacity)
        self.decisions: "dict[Any, Any]" = {}
        extension = _extension.extension
        self.lock: Any = threading.RLock() if extension is None else extension.lock_of_group()
        self._world = weakref.ref(world)
        self.last_stream = -1  # on which a launch was queued, as a cudaStream_t
        self.last_stream_argument = ctypes.c_void_p()  # the same
        self._last: Optional[torch.cuda.Stream] = None  # the same
        # Launches that are queued on a stream put to other nodes while no call of this process runs.
        self._activity: Optional[Activity] = group.keep_active() if group.device >= 0 and group.node_count > 1 else None

    def is_current(self) -> bool:
        """Whether torch.distributed is still the one that it was made in."""
        world = dist.group.WORLD  # None: it is not initialized
        return world is not None and self._world() is world

    def stream(self) -> "tuple[int, bool]":
        """torch's current stream on the group's GPU, and whether a graph captures it. Launches of a group follow each other: a
        stream that is not the one of the launch before waits for it. That of a graph is the caller's to order."""
        stream: int = raw_stream(self.device)
        if torch.cuda.is_current_stream_capturing():
            return stream, True
        if self.last_stream != stream:
            current = torch.cuda.current_stream(self.device)
            if self._last is not None:
                current.wait_stream(self._last)
            self._last, self.last_stream, self.last_stream_argument = current, stream, ctypes.c_void_p(stream)
            if isinstance(self.lock, _extension.GroupLock):
                self.lock.set_stream(current.stream_id, stream)
        return stream, False

    def close(self) -> None:
        with self.lock:
            self.plans.close()
            if self._activity is not None:
                self._activity.close()
            self.group.close()


class _State:
    by_ranks: "dict[tuple[int, ...], Membership]" = {}
    by_name: "dict[str, tuple[Any, Membership]]" = {}  # with the process group, weakly
    sessions: "dict[tuple[str, int], Session]" = {}
    alone: "dict[Session, Membership]" = {}  # groups of this process alone
    attempts: "Counter[str]" = Counter()  # of init(), by process group
    forked = False


def _after_fork() -> None:
    """The parent keeps what it has; in the child all of it refuses every call, and dropping it does nothing."""
    if _extension.extension is not None:
        _extension.extension.functions.after_fork()  # first: another thread may have held the lock of its table
    _State.forked = _State.forked or bool(_State.by_ranks)
    for table in (_State.by_ranks, _State.by_name, _State.sessions, _State.alone, remembered):
        table.clear()


os.register_at_fork(after_in_child=_after_fork)


def init(process_group: Optional[Any] = None, *, socket: Optional[Path] = None, device: "Optional[Device | str]" = None,
         lanes: Optional[int] = None, max_plans: Optional[int] = None, timeout: Optional[Seconds] = None) -> Group:
    """**Collective** over `process_group` (None: all processes; also a DeviceMesh of one dimension): makes the group of mkernel that
    its operators use, or returns the one that was made before for the same ranks. Options that are given then must be those that it
    was made with.

    `socket`: of the daemon of this node; may differ between ranks. `device`: a torch.device or GPU ordinal; None: torch's current
    one, without CUDA -1, which is host memory only. `lanes`: of the group (None: 64); over several nodes an operation takes one or two.
    `max_plans`: operations that are kept (None: 48); the one that was not used for longest goes first. `timeout`: seconds (None: 60),
    for all ranks to come, for the group to form, and for making an operation.

    Errors: DeadlineExceeded (who is missing), InvalidArgument (process groups or options that differ between ranks or from those of the
    group that is there, naming both; a GPU that is not there), FailedPrecondition (torch.distributed is not initialized), Unavailable (a
    rank that cannot come, and why), and those of connect() and join()."""
    chosen = process_group_of("init: process_group", process_group)
    if chosen is dist.GroupMember.NON_GROUP_MEMBER or dist.get_rank(chosen) < 0:
        raise InvalidArgument("init: this process is no member of the process group: only its members call init")
    ranks = tuple(dist.get_process_group_ranks(chosen))
    name = str(chosen.group_name)
    _forget_ended()
    with _others_hear(chosen, ranks):
        asked = _Asked(
            None if socket is None else path("init: socket", socket),
            None if device is None else _ordinal("init: device", device),
            None if lanes is None else integer("init: lanes", lanes, 1, U32_MAX),
            None if max_plans is None else integer("init: max_plans", max_plans, 1, U32_MAX),
            None if timeout is None else seconds("init: timeout", timeout),
        )
    found = _State.by_ranks.get(ranks)
    if found is None:
        found = _make(chosen, ranks, *asked)
        _State.by_ranks[ranks] = found
    else:
        asked.compare(found)
    _State.by_name[name] = (weakref.ref(chosen, forget), found)
    _State.forked = False
    return found.group


class _Asked(NamedTuple):
    """The options of a call of init(); None: not given."""

    socket: Optional[str]
    device: Optional[int]
    lanes: Optional[int]
    max_plans: Optional[int]
    timeout: Optional[float]

    def compare(self, found: Membership) -> None:
        """Raises what differs from the group that was made before."""
        group = found.group
        made = _Asked(group.session.socket, found.device, group.lanes, found.plans.capacity, group.timeout)
        pairs = ((field, asked, has) for field, asked, has in zip(self._fields, self, made) if asked is not None and asked != has)
        differ = [f"{field} = {asked!r}, and it has {has!r}" for field, asked, has in pairs]
        if differ:
            raise InvalidArgument(
                f"init: the ranks of this process group have a group that was made with other options: {'; '.join(differ)}; leave the "
                "options out, or call mkernel.torch.shutdown() on every rank before"
            )


def process_group_of(field: str, given: Optional[Any]) -> Any:
    """A process group of c10d: the argument itself, that of a DeviceMesh of one dimension, or all processes for None."""
    if not dist.is_initialized():
        raise FailedPrecondition(f"{field}: torch.distributed is not initialized: call torch.distributed.init_process_group() first")
    if given is None:
        return dist.group.WORLD
    if hasattr(given, "get_group") and hasattr(given, "mesh_dim_names"):
        if given.ndim != 1:
            raise InvalidArgument(f"{field} is a DeviceMesh of {given.ndim} dimensions: take one of them, as mesh[\"tp\"]")
        return given.get_group()
    if given is dist.GroupMember.NON_GROUP_MEMBER or hasattr(given, "group_name"):
        return given
    raise TypeError(f"{field} is of type {type(given).__name__}, needed is a torch.distributed.ProcessGroup")


def _ordinal(field: str, device: "Device | str") -> int:
    """The ordinal of a GPU that is there, or -1 for host memory."""
    try:
        chosen: Device = torch.device(device) if isinstance(device, str) else device
    except RuntimeError as error:
        raise InvalidArgument(f"{field} = {device!r}: {error}") from None
    if getattr(chosen, "type", None) == "cuda" and not torch.cuda.is_available():
        raise InvalidArgument(f"{field} = {device}: PyTorch sees no GPU (torch.cuda.is_available() is False)")
    found = ordinal(field, chosen)
    count = torch.cuda.device_count()
    if found >= count:
        seen = f"the {count} GPUs 0 to {count - 1}" if count else "no GPU"
        raise InvalidArgument(f"{field} = {found}: PyTorch sees {seen} (torch.cuda.device_count() is {count})")
    return found


def _rendezvous(process_group: Any, ranks: "tuple[int, ...]", facts: "dict[str, Any]", timeout: float) -> Rendezvous:
    store = c10d.PrefixStore("mkernel", c10d._get_process_group_store(process_group))
    world = c10d.PrefixStore("mkernel", c10d._get_default_store())
    name = str(process_group.group_name)
    _State.attempts[name] += 1
    return Rendezvous(store, world, ranks, dist.get_rank(process_group), {"group": name, **facts}, timeout, _State.attempts[name])


@contextlib.contextmanager
def _others_hear(process_group: Any, ranks: "tuple[int, ...]") -> Iterator[None]:
    """What goes wrong before the ranks have met ends the wait of the others too, with the reason."""
    try:
        yield
    except Exception as error:  # noqa: BLE001: whatever it is, the others wait for this rank
        if ranks not in _State.by_ranks:
            _rendezvous(process_group, ranks, {}, 1.0).refuse(error)
        raise


def _make(process_group: Any, ranks: "tuple[int, ...]", socket: Optional[str], device: Optional[int], lanes: Optional[int],
          max_plans: Optional[int], timeout: Optional[float]) -> Membership:
    socket, timeout = DEFAULT_SOCKET if socket is None else socket, 60.0 if timeout is None else timeout
    lanes, max_plans = 64 if lanes is None else lanes, _PLANS if max_plans is None else max_plans
    with _others_hear(process_group, ranks):
        if device is None:
            device = torch.cuda.current_device() if torch.cuda.is_available() else -1
        session = _State.sessions.get((socket, device))
        if session is None:
            session = connect(socket, name=f"torch rank {dist.get_rank()}", device=device, timeout=min(timeout, 10.0))
    facts = {"lanes": lanes, "max_plans": max_plans, "gpu": device >= 0, "version": __version__}
    rendezvous = _rendezvous(process_group, ranks, facts, timeout)
    try:
        group_name, secret = rendezvous.agree()
        rank = dist.get_rank(process_group)
        group = session.join(group_name, len(ranks), rank, lanes=lanes, region_capacity=min(256, 2 * max_plans + 16),
                             timeout=timeout, secret=secret)
    finally:
        rendezvous.end()
        _State.attempts[str(process_group.group_name)] = rendezvous.attempt  # ranks that have met count alike
    _State.sessions[(socket, device)] = session
    return Membership(group, dist.group.WORLD, max_plans)


def membership_of(group_name: str) -> Membership:
    """Of the process group that c10d knows by this name."""
    try:
        process_group = resolve(group_name)
    except (ValueError, RuntimeError, KeyError) as error:
        text = f"group_name = {group_name!r}: c10d knows no such process group; take ProcessGroup.group_name ({error})"
        raise NotFound(text) from None
    entry = _State.by_name.get(group_name)
    if entry is not None and entry[0]() is process_group:
        return entry[1]
    if _State.forked:
        raise NotInitialized(
            f"group_name = {group_name!r}: this process was forked after mkernel.torch.init(): start it by spawn, or give it a "
            "process group and an init() of its own"
        )
    _forget_ended()
    ranks = tuple(dist.get_process_group_ranks(process_group))
    found = _State.by_ranks.get(ranks)
    if found is None:
        raise NotInitialized(
            f"group_name = {group_name!r}: mkernel.torch.init() was not called for its ranks {list(ranks)}: call it on all of them"
        )
    _State.by_name[group_name] = (weakref.ref(process_group, forget), found)
    return found


def alone_on(device: torch.device) -> Membership:
    """A group of this process alone, for operations that concern no other rank, in the session that init() made for `device`: the
    first call makes it, and waits for nobody. Errors: NotInitialized, and those of join()."""
    fitting = [session for (_, ordinal), session in list(_State.sessions.items()) if device.type != "cuda" or ordinal == device.index]
    if not fitting:
        raise NotInitialized(f"mkernel.torch.init() was not called in this process for {device}")
    found = _State.alone.get(fitting[0])
    if found is None:
        name = f"torch-alone-{os.getpid()}-{secrets.token_hex(6)}"
        group = fitting[0].join(name, 1, 0, lanes=1, region_capacity=2 * _PLANS + 16, secret=secrets.token_bytes(32))
        found = _State.alone[fitting[0]] = Membership(group, dist.group.WORLD, _PLANS)
    return found


def count_fallback(reason: str, group_name: Optional[str]) -> None:
    """Counts a call that runs as it would without mkernel: in counters(), and for mkctl in the session of the process group, or
    without one in any session of init(). Never raises."""
    fallbacks[reason] += 1
    session = next(iter(list(_State.sessions.values())), None)
    try:
        if group_name is not None:
            session = membership_of(group_name).group.session
    except Error:
        pass  # init() was not called for it
    try:
        if session is not None:
            session.count_fallback()
    except FailedPrecondition:
        pass  # shutdown() has closed it meanwhile


def synchronize() -> None:
    """Waits until the current stream of every group's GPU is done, and raises why a launch that was queued there has failed: its
    results are not valid then, and its group is over. A call raises the same once the GPU has said so; the replay of a graph never
    does, and this is how to hear of it. Not while a graph is captured.

    A mixture of experts that every rank has refused, for bad routing or for more rows than its capacity, raises InvalidArgument or
    ResourceExhausted here alone, once, on every rank that asks. Its result was not written, and the group goes on. When several
    launches of one operation were refused since the last call of synchronize(), the refusal of the last one is raised."""
    for membership in (*_State.by_ranks.values(), *_State.alone.values()):
        if membership.device >= 0:
            torch.cuda.current_stream(membership.device).synchronize()
            with membership.lock:
                membership.plans.raise_failure()


def _forget_ended() -> None:
    """Drops groups that were made before torch.distributed was destroyed and initialized again."""
    for ranks, membership in list(_State.by_ranks.items()):
        if not membership.is_current():
            _drop(ranks, membership)


def _drop(ranks: "tuple[int, ...]", membership: Membership) -> None:
    del _State.by_ranks[ranks]
    for name in [name for name, entry in _State.by_name.items() if entry[1] is membership]:
        del _State.by_name[name]
    membership.close()


def shutdown(process_group: Optional[Any] = None) -> None:
    """Closes the operations and leaves the group of `process_group`; None: of all of them, and ends the sessions. Call it on every
    rank, also after an error that ended a group, and then init() again."""
    of_group = None if process_group is None else process_group_of("shutdown: process_group", process_group)
    for ranks, membership in list(_State.by_ranks.items()):
        if of_group is None or ranks == tuple(dist.get_process_group_ranks(of_group)):
            _drop(ranks, membership)
    if process_group is None:
        while _State.alone:
            _State.alone.popitem()[1].close()
        while _State.sessions:
            _State.sessions.popitem()[1].close()
