"""How the library is called: status to exception, handles, and calls that wait.

How Ctrl-C ends a wait. The library's waits release the interpreter's lock, but Python runs a signal handler only between two
instructions of the main thread, so one long call would keep Ctrl-C waiting. Calls with a time limit of their own (arrivals,
completions, launches, puts that wait for room) are therefore made in slices: a slice that ends changes nothing, it is the cheapest
form, and what is waited for returns at once. Collective calls and connecting have no such form, since a collective call that gives
up fails its group. They run on a thread of their own while the main thread waits for a lock, which a signal handler interrupts. A
call that is left behind so goes on to its own time limit. What it makes is destroyed, and until it ends its group refuses further
collective calls. Other threads than the main one never run handlers: they make each call directly.

While the interpreter ends, finalizers (`__del__`) may still call. No thread runs Python code any more then: Python 3.11 would wait for
ever for one that is started, and 3.12 raises. So these calls are made directly, too."""

import atexit
import sys
import threading
import time
import weakref
from ctypes import byref, c_void_p
from typing import Any, Callable, Optional

from mkernel._arguments import LONGEST_SECONDS, Seconds, seconds
from mkernel._library import lib
from mkernel.errors import Code, DeadlineExceeded, Error, FailedPrecondition, ResourceExhausted, error_of

SLICE_SECONDS = 0.05


def check(status: int) -> None:
    """Raises the exception of a status; call it on the thread that made the call."""
    if status:
        raise error_of(status, lib.mk_last_error().decode(errors="replace"))


def error_status(status: int) -> Optional[Error]:
    """None for OK, else the exception, not raised."""
    return error_of(status, lib.mk_last_error().decode(errors="replace")) if status else None


class Handle:
    """Owns one handle of the library and destroys it when the last reference goes. A call keeps a reference as long as it runs,
    so that no other thread can destroy the handle under it."""

    __slots__ = ("pointer", "_destroy", "__weakref__")

    def __init__(self, pointer: int, destroy: Callable[[int], None]) -> None:
        self.pointer: Optional[int] = pointer
        self._destroy = destroy

    def __del__(self) -> None:
        pointer, self.pointer = self.pointer, None
        if pointer is not None:
            self._destroy(pointer)

    def abandon(self) -> None:
        """Leaves the handle to the end of the process."""
        self.pointer = None


class GroupHandle(Handle):
    """The handle of a group: what goes to the end of the process without it is left first."""

    __slots__ = ()

    def abandon(self) -> None:
        if self.pointer is not None:
            lib.mk_group_leave(self.pointer)  # refused while a launch or a collective call is under way
        super().abandon()


_live: "weakref.WeakSet[Handle]" = weakref.WeakSet()


@atexit.register
def _end_handles() -> None:
    """At exit, groups are left and sessions ended as if they had been closed. Any other thread that lives may be inside a call: then
    groups of which nothing is under way are left, so that the exit costs no other rank its last step, and all else is left to the
    end of the process, which the daemon notices."""
    others = threading.active_count() > 1
    for handle in list(_live):
        if others:
            handle.abandon()
        else:
            handle.__del__()


class _Call:
    """A call on a thread of its own."""

    def __init__(self, what: str, body: Callable[[], Any]) -> None:
        self.what = what
        self.running = False
        self._body: Optional[Callable[[], Any]] = body
        self._left = False
        self._over = threading.Lock()
        self._over.acquire()
        self._result: Any = None
        self._error: Optional[BaseException] = None

    def start(self) -> None:
        self.running = True
        self._thread = threading.Thread(target=self._run, name=f"mkernel {self.what}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            self.running = False
            raise ResourceExhausted(f"{self.what}: {error}") from None

    def _run(self) -> None:
        body, self._body = self._body, None
        assert body is not None
        try:
            self._result = body()
        except BaseException as error:
            self._error = error
        del body
        self.running = False
        if self._left:
            self._result = None
        self._over.release()

    def wait(self) -> Any:
        self._over.acquire()  # join() alone, when it is interrupted, takes a thread for ended that goes on
        # Until it ends the thread refers to what the call made, and at exit counts as one that may be inside a call.
        self._thread.join()
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # it holds this frame, which must not hold it
        return self._result

    def leave(self) -> None:
        """Nobody waits any more: what the call makes is destroyed when it ends."""
        self._left = True
        if not self.running:
            self._result = None


def interruptible(what: str, body: Callable[[], Any], owner: Any = None) -> Any:
    """Runs `body`, which may wait for long, so that Ctrl-C ends the wait for it. `owner.left_behind` then remembers it."""
    if sys.is_finalizing() or threading.current_thread() is not threading.main_thread():
        return body()
    call = _Call(what, body)
    try:
        try:
            call.start()
        except ResourceExhausted:
            if threading.main_thread().is_alive():
                raise
            return body()  # functions of atexit run, and this Python starts no thread for them
        return call.wait()
    except BaseException:
        call.leave()
        if call.running and owner is not None:
            owner.left_behind = call
        raise


def wait_in_slices(what: str, wait: Callable[[int], int], is_over: Callable[[], bool],
                   timeout: Optional[Seconds]) -> None:
    """Calls `wait`, which takes milliseconds and returns a status, in slices until `timeout` seconds are over; None: as long as
    it takes. A slice that ends early returns what the wait ended with. One that ends late returns DEADLINE_EXCEEDED, and so does
    a wait for something that failed with this code: `is_over` tells the two apart."""
    limit = None if timeout is None else seconds(f"{what}: timeout", timeout)
    end = None if limit is None else time.monotonic() + limit
    longest = SLICE_SECONDS if threading.current_thread() is threading.main_thread() else LONGEST_SECONDS
    while True:
        left = longest if end is None else max(end - time.monotonic(), 0.0)
        status = wait(max(1, round(min(left, longest) * 1000)))
        if status != Code.DEADLINE_EXCEEDED:
            return check(status)
        if is_over():
            return check(wait(1))
        if end is not None and time.monotonic() >= end:
            status = wait(1)  # for its text
            if status != Code.DEADLINE_EXCEEDED:  # what was waited for came in this moment: a put must not be made and denied
                return check(status)
            raise DeadlineExceeded(f"{what}: not within {limit:g} s: {lib.mk_last_error().decode(errors='replace')}")


def create(what: str, make: Callable[..., int], *arguments: Any, destroy: Callable[[int], None], owner: Any = None,
           kind: type = Handle) -> Any:
    """A handle of what `make` creates."""

    def body() -> Any:
        pointer = c_void_p()
        check(make(*arguments, byref(pointer)))
        handle = kind(pointer.value, destroy)
        _live.add(handle)
        return handle

    return interruptible(what, body, owner)


def drop(what: str, holder: "list[Optional[Handle]]") -> None:
    """Destroys the handle in `holder`, to which nothing else may refer; interruptible, because leaving a group asks the daemon. A
    handle that is empty, as all are after _end_handles(), costs nothing."""
    if holder[0] is None or holder[0].pointer is None:
        holder.clear()
    else:
        interruptible(what, holder.clear)


def closed(what: str) -> FailedPrecondition:
    return FailedPrecondition(f"{what} is closed")
