"""The connection to the daemon of this node."""

import os
from typing import TYPE_CHECKING, Any, Optional

from mkernel import _abi
from mkernel._arguments import U32_MAX, Device, Path, Seconds, integer, milliseconds, octets, ordinal, path, seconds, text
from mkernel._calls import GroupHandle, Handle, check, closed, create, drop
from mkernel._library import lib
from mkernel.errors import InvalidArgument
from mkernel.group import Group

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

DEFAULT_SOCKET = "/run/mkernel/mkerneld.sock"


class Session:
    """A connection to the daemon of this node; made by connect(). Its life is the life of all that the daemon holds for this
    process. May be used from any thread. It ends when it and all its groups are closed or gone."""

    def __init__(self, handle: Handle, socket: str, device: int) -> None:
        self._handle: Optional[Handle] = handle
        self.socket = socket
        self.device = device  #: GPU ordinal of CUDA in this process, -1 = host memory only

    def join(self, name: str, world_size: int, rank: int, *, lanes: int = 16, region_capacity: int = 64, timeout: Seconds = 60.0,
             secret: "Optional[ReadableBuffer]" = None) -> Group:
        """**Collective**: returns when every rank of the group has joined.

        `name` (below 64 bytes), `world_size` (1 to 1024), `lanes` (channels per ordered pair of ranks, 1 to 64),
        `region_capacity` (buffers per rank, 1 to 256) and `secret` are the same on every rank. `timeout`: seconds, of joining,
        of every collective call, and of a put's wait for room. `secret`: 32 random bytes that only the ranks know; needed when ranks run under different uids.

        Errors: AlreadyExists (who holds the rank), PermissionDenied (two uids on one node), InvalidArgument (an
        option, or one that differs between ranks, naming both), DeadlineExceeded (the missing ranks), ResourceExhausted (a limit of
        the operator, by key)."""
        session = self._handle
        if session is None:
            raise closed("the session")
        shared = None if secret is None else octets("secret", secret)
        if shared is not None and len(shared) != _abi.SECRET_BYTES:
            raise InvalidArgument(f"secret has {len(shared)} bytes, needed are {_abi.SECRET_BYTES}")
        lanes, limit = integer("lanes", lanes, 1, U32_MAX), seconds("timeout", timeout)
        options = _abi.GroupOptions(
            name=text("name", name),
            world_size=integer("world_size", world_size, 0, U32_MAX),
            rank=integer("rank", rank, 0, U32_MAX),
            lanes=lanes,
            region_capacity=integer("region_capacity", region_capacity, 1, U32_MAX),
            timeout_ms=milliseconds("timeout", limit),
            secret=shared,
        )
        handle = create(
            f"join of group '{name}'",
            lambda out: lib.mk_join(session.pointer, options, out),
            destroy=lib.mk_group_destroy,
            kind=GroupHandle,
        )
        return Group(self, handle, name, lanes, limit)

    def count_fallback(self) -> None:
        """Counts one call that a framework made in its own way, because mkernel has nothing for it. `mkctl sessions` shows the sum
        beside the launches of this session. Any thread. Errors: FailedPrecondition (closed, or of the parent of this forked
        process)."""
        session = self._handle
        if session is None:
            raise closed("the session")
        check(lib.mk_session_count_fallback(session.pointer))

    def close(self) -> None:
        """Ends the session once all its groups are closed too; a second call does nothing."""
        holder, self._handle = [self._handle], None
        drop("ending a session", holder)

    def __enter__(self) -> "Session":
        if self._handle is None:
            raise closed("the session")
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<mkernel.Session at {self.socket}{', closed' if self._handle is None else ''}>"


def connect(socket: Path = DEFAULT_SOCKET, *, name: str = "", device: Device = -1, weight: int = 1,
            timeout: Seconds = 10.0) -> Session:
    """Connects to the daemon of this node.

    `socket`: its session socket. `name`: shown by mkctl, below 64 bytes; empty = the program's name. `device`: GPU ordinal of CUDA
    in this process, or a torch.device; -1 = host memory only. Puts go over the NICs near it. `weight`: share among the sessions of the same user, 1
    to 64. `timeout`: seconds, of connecting and of every small request of the session.

    Errors: Unavailable (nobody listens), PermissionDenied, FailedPrecondition (the daemon speaks another version), InvalidArgument
    (an option; named with value and limit), DeadlineExceeded. A process that was forked connects a session of its own: handles of
    its parent refuse every call there."""
    where, gpu = path("socket", socket), ordinal("device", device)
    options = _abi.SessionOptions(
        socket=os.fsencode(where),
        name=text("name", name),
        device=gpu,
        weight=integer("weight", weight, 1, U32_MAX),
        timeout_ms=milliseconds("timeout", timeout),
    )
    handle = create("connect", lambda out: lib.mk_connect(options, out), destroy=lib.mk_session_destroy)
    return Session(handle, where, gpu)

