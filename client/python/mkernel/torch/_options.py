"""Options of the calls and counters of what they did, both of the whole process."""

import contextlib
import dataclasses
from collections import Counter, defaultdict
from typing import Any, Iterator

from mkernel._arguments import boolean, integer, seconds
from mkernel.errors import InvalidArgument
from mkernel.torch import _extension


@dataclasses.dataclass(frozen=True)
class Options:
    """What the operators' schemas, which are those of symm_mem, have no room for. The same on every rank, except `timeout` and
    `compute_threads`."""

    timeout: float = 30.0  #: seconds, or a timedelta, of every single wait of a launch
    sm_margin: int = 0  #: multiprocessors that a launch leaves free; the cpu executor has none
    compute_threads: int = 0  #: of the cpu executor; 0: the hardware's threads / ranks of this node
    #: How many sizes of M per power of two have a plan: rows are padded to the next. 1: powers of two alone; 0: one plan for
    #: each M, which is never padded.
    buckets: int = 4
    #: Every call first compares its shapes over all ranks. It costs a round trip: for finding ranks that make different calls. One of
    #: a mixture of experts on a GPU, unless a graph captures it, also waits for its launch: for finding bad routing.
    check: bool = False

    def __post_init__(self) -> None:
        plain = {
            "timeout": seconds("timeout", self.timeout, 1800.0),
            "sm_margin": integer("sm_margin", self.sm_margin, 0, 4096),
            "compute_threads": integer("compute_threads", self.compute_threads, 0, 4096),
            "buckets": integer("buckets", self.buckets, 0, 16),
            "check": boolean("check", self.check),
        }
        if plain["buckets"] not in (0, 1, 2, 4, 8, 16):
            raise InvalidArgument(f"buckets = {self.buckets} is none of 0, 1, 2, 4, 8, 16")
        for field, value in plain.items():
            object.__setattr__(self, field, value)  # the class is frozen


class _Current:
    options = Options()


def current() -> Options:
    return _Current.options


# Calls that were decided under these options (mkernel.torch._short); whatever could change the answer calls forget().
remembered: "dict[Any, Any]" = {}


def forget(*_: Any) -> None:
    """The calls that are remembered, also those of the extension. A launch that has begun goes on. Any thread."""
    remembered.clear()
    if _extension.extension is not None:
        _extension.extension.functions.forget()


def set_options(**changes: Any) -> None:
    """Sets fields of Options for all calls of this process from now on."""
    _Current.options = dataclasses.replace(_Current.options, **changes)
    forget()


@contextlib.contextmanager
def options(**changes: Any) -> Iterator[None]:
    """Sets fields of Options within a `with` block. They belong to the process, not to the thread: the backward pass runs on
    threads of its own. Use it around a compiled function, not inside of one."""
    before = _Current.options
    set_options(**changes)
    try:
        yield
    finally:
        _Current.options = before
        forget()


def bucket_of(rows: int, per_octave: int) -> int:
    """The smallest size with a plan that is at least `rows`."""
    if per_octave == 0 or rows <= per_octave:
        return rows
    below = 1 << (rows.bit_length() - 1)  # the power of two at or below
    step = max(below // per_octave, 1)
    return -(-rows // step) * step


totals: "defaultdict[str, int]" = defaultdict(int)  # counts in half the time of a Counter
# Calls by operator that took the short way, which `totals` do not have: each found its plan and made one launch.
repeated: "defaultdict[str, int]" = defaultdict(int)
copies: "Counter[str]" = Counter()  # by what was copied and why
fallbacks: "Counter[str]" = Counter()  # by operator and reason


def taken() -> "dict[str, int]":
    """Calls by operator that the extension in C++ took, which neither `totals` nor `repeated` have."""
    return {} if _extension.extension is None else _extension.extension.taken()


def counters() -> "dict[str, Any]":
    """What this process did so far: calls by operator, launches, plans_created, plans_hit, plans_evicted, padded, and with their
    reasons `copies` and `fallbacks`."""
    found: "Counter[str]" = Counter(totals)
    for name, calls in (*list(repeated.items()), *taken().items()):
        for field in (name, "plans_hit", "launches"):
            found[field] += calls
    return {**found, "copies": dict(copies), "fallbacks": dict(fallbacks)}


def reset_counters() -> None:
    totals.clear()
    repeated.clear()
    if _extension.extension is not None:
        _extension.extension.functions.reset_taken()
    copies.clear()
    fallbacks.clear()
