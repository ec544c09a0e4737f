"""Exceptions: one class per status of libmkernel. Each also is the built-in exception that a Python program expects."""

import enum
from typing import Any


class Code(enum.IntEnum):
    """The status codes, which are those of gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15


class Error(Exception):
    """What went wrong: a code and a text that says who, what and which peer."""

    code: Code = Code.UNKNOWN

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    @property
    def code_name(self) -> str:
        """The name of the code, for example "DEADLINE_EXCEEDED"."""
        return self.code.name

    def __str__(self) -> str:
        return f"{self.code_name}: {self.text}"

    def __reduce__(self) -> "tuple[Any, ...]":
        # Without calling __init__(), whose parameters are those of the subclass: pickle, copy and process pools rebuild every error.
        return _rebuilt, (type(self), self.args), self.__dict__


def _rebuilt(kind: "type[Error]", arguments: "tuple[Any, ...]") -> Error:
    """An error of class `kind` as pickle makes it again; pickle then sets its attributes."""
    error = kind.__new__(kind)
    error.args = arguments
    return error


class Cancelled(Error):
    """The call was given up because another part of the same launch failed."""

    code = Code.CANCELLED


class Unknown(Error):
    """A failure without a better code."""

    code = Code.UNKNOWN


class InvalidArgument(Error, ValueError):
    """An argument is wrong, or differs between ranks. The text names the field, the value and the limit."""

    code = Code.INVALID_ARGUMENT


class DeadlineExceeded(Error, TimeoutError):
    """Something did not happen in time. The text says who waited for whom."""

    code = Code.DEADLINE_EXCEEDED


class NotFound(Error, LookupError):
    """What was named does not exist."""

    code = Code.NOT_FOUND


class AlreadyExists(Error):
    """Somebody else has it, for example the rank. The text says who."""

    code = Code.ALREADY_EXISTS


class PermissionDenied(Error, PermissionError):
    """This user may not do that."""

    code = Code.PERMISSION_DENIED


class ResourceExhausted(Error):
    """Memory, lanes, regions or a limit of the operator are used up. The text names which."""

    code = Code.RESOURCE_EXHAUSTED


class FailedPrecondition(Error, RuntimeError):
    """The call does not fit the state: a closed handle, a forked child, a session without a GPU, another version."""

    code = Code.FAILED_PRECONDITION


class Aborted(Error):
    """A rank gave up. The group is over for all ranks."""

    code = Code.ABORTED


class OutOfRange(Error, IndexError):
    """An offset, a size or a rank lies outside its bounds."""

    code = Code.OUT_OF_RANGE


class Unimplemented(Error, NotImplementedError):
    """This build or this executor does not have it."""

    code = Code.UNIMPLEMENTED


class Internal(Error, RuntimeError):
    """A mistake inside mkernel."""

    code = Code.INTERNAL


class Unavailable(Error, ConnectionError):
    """The daemon or a peer is gone. The text says which."""

    code = Code.UNAVAILABLE


class DataLoss(Error):
    """Bytes were lost."""

    code = Code.DATA_LOSS


_CLASSES: "dict[int, type[Error]]" = {cls.code: cls for cls in Error.__subclasses__()}


def error_of(code: int, text: str) -> Error:
    """The exception of a status. `code` must not be OK."""
    return _CLASSES.get(code, Unknown)(text)
