"""Arguments of the API. Each function here returns the plain value that the library takes, or raises an exception that names the
argument: TypeError for a wrong type, InvalidArgument for a value beyond its bounds.

Scalars of numpy and of PyTorch are taken as the numbers that they hold. A bool is no number, and a number is no text."""

import operator
import os
import sys
from typing import Any, Optional, Protocol, SupportsFloat, Union

from mkernel.errors import InvalidArgument

U32_MAX, U64_MAX = 2**32 - 1, 2**64 - 1
LONGEST_SECONDS = 86400.0
_NO_NUMBERS = ("bool", "bool_", "timedelta64", "datetime64")  # types of numpy among them, which answer as numbers do


class DeviceLike(Protocol):
    """What torch.device has."""

    @property
    def type(self) -> str: ...

    @property
    def index(self) -> Any: ...


class Duration(Protocol):
    """What datetime.timedelta has."""

    def total_seconds(self) -> float: ...


Device = Union[int, DeviceLike]
Seconds = Union[SupportsFloat, Duration]
Path = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]


def integer(field: str, value: Any, low: int, high: int) -> int:
    """`value` as an int within its bounds, else an exception that names the three."""
    if type(value) is not int:
        value = _index(field, value)
    if not low <= value <= high:
        raise InvalidArgument(f"{field} = {value} is not {low}..{high}")
    return value  # type: ignore[no-any-return]


def _index(field: str, value: Any) -> int:
    if type(value).__name__ not in _NO_NUMBERS:
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise TypeError(f"{field} = {value!r} is not an integer")


def number(field: str, value: Any, what: str = "a number") -> float:
    """`value` as a float."""
    if type(value).__name__ not in _NO_NUMBERS and (hasattr(type(value), "__float__") or hasattr(type(value), "__index__")):
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError):
            pass
    raise TypeError(f"{field} = {value!r} is not {what}")


def boolean(field: str, value: Any) -> bool:
    """`value` as a bool; 0 and 1 are taken, too."""
    if isinstance(value, bool):
        return value
    if type(value).__name__ not in ("bool", "bool_"):  # of numpy
        try:
            value = operator.index(value)
        except TypeError:
            value = None
    if value not in (0, 1):
        raise TypeError(f"{field} = {value!r} is neither True nor False")
    return bool(value)


def seconds(field: str, value: Seconds, most: float = LONGEST_SECONDS) -> float:
    """A time limit: a number of seconds or a timedelta, above 0 and at most `most` seconds."""
    whole: Any = getattr(value, "total_seconds", None)
    limit = whole() if callable(whole) else number(field, value, "a number of seconds or a timedelta")
    if not 0 < limit <= most:
        raise InvalidArgument(f"{field} = {value} is not above 0 and at most {most:.0f} seconds")
    return float(limit)


def milliseconds(field: str, value: Seconds) -> int:
    """The same as the C ABI wants it: at least 1 ms."""
    return max(1, round(seconds(field, value) * 1000))


def text(field: str, value: Any) -> bytes:
    """A string without zero bytes, for the C ABI. What Python has made of bytes that are no UTF-8 becomes these bytes again."""
    if not isinstance(value, str):
        raise TypeError(f"{field} = {value!r} is not a string")
    if "\0" in value:
        raise InvalidArgument(f"{field} = {value!r} has a zero byte")
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{field} = {value!r} cannot be encoded: {error.reason}") from None


def path(field: str, value: Path) -> str:
    """A path: a string, bytes or an object with __fspath__."""
    try:
        found = os.fsdecode(value)
    except TypeError:
        raise TypeError(f"{field} = {value!r} is not a path (str, bytes or os.PathLike)") from None
    if "\0" in found:
        raise InvalidArgument(f"{field} = {found!r} has a zero byte")
    return found


def octets(field: str, value: Any) -> bytes:
    """The bytes of a bytes-like object."""
    try:
        view = memoryview(value)
    except TypeError:
        raise TypeError(f"{field} is of type {type(value).__name__}; accepted are bytes-like objects") from None
    if "O" in view.format:
        raise TypeError(f"{field} is an array of Python objects, which have no bytes to send")
    return view.tobytes()


def items(field: str, value: Any) -> "tuple[Any, ...]":
    """The elements of a sequence that is no text."""
    if not isinstance(value, (str, bytes, bytearray)):
        try:
            return tuple(value)
        except TypeError:
            pass
    raise TypeError(f"{field} = {value!r} is not a sequence")


def extents(field: str, value: Any, high: int) -> "tuple[int, ...]":
    """A shape: one extent, or a sequence of them."""
    try:
        given = items(field, value)
    except TypeError:
        given = (value,)
    return tuple(integer(field, extent, 0, high) for extent in given)


def ordinal(field: str, value: Device) -> int:
    """The ordinal of a GPU, or -1 for host memory: an int, or a torch.device."""
    kind: Optional[str] = getattr(value, "type", None)
    if not isinstance(kind, str):
        return integer(field, value, -1, 2**31 - 1)
    if kind == "cpu":
        return -1
    if kind != "cuda":
        raise InvalidArgument(f"{field} = {value}; known are cpu and cuda")
    index: Any = getattr(value, "index", None)
    if index is None and "torch" in sys.modules:
        index = sys.modules["torch"].cuda.current_device()  # what "cuda" without a number means there
    return integer(f"{field}: the index of {value}", index, 0, 2**31 - 1)
