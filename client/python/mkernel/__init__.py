"""mkernel: communication that GPUs and threads drive through a daemon per node, and operations fused with it.

    session = mkernel.connect()
    group = session.join("job", world_size=4, rank=0)

The client is pure Python over the C ABI of libmkernel and needs neither PyTorch nor numpy. Times are in seconds, sizes in bytes.
Everything that connect() leads to is a handle: it ends by close(), at the end of its `with` block, or when nothing refers to it
any more, in any order. Errors are subclasses of Error."""

from mkernel._library import lib as _lib
from mkernel._version import __version__
from mkernel.buffers import Buffer, HostBuffer, SymmetricBuffer, View
from mkernel.errors import (
    Aborted,
    AlreadyExists,
    Cancelled,
    Code,
    DataLoss,
    DeadlineExceeded,
    Error,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    OutOfRange,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
    Unimplemented,
    Unknown,
)
from mkernel.attention import Attention, AttentionBackward, RingAttention, RingAttentionBackward
from mkernel.group import Activity, Group, RankInfo
from mkernel.operations import Gemm, GroupedGemm, Launch, Moe, Operation, Pending, block_range
from mkernel.session import Session, connect


def library_version() -> str:
    """The version of the libmkernel that is loaded, for example "0.1.0"."""
    return str(_lib.mk_version().decode())


def library_path() -> str:
    """Where it was loaded from."""
    return _lib.path


def protocol_version() -> int:
    """Of what client and daemon say to each other."""
    return int(_lib.mk_protocol_version())


__all__ = [
    "Aborted",
    "Activity",
    "AlreadyExists",
    "Attention",
    "AttentionBackward",
    "Buffer",
    "Cancelled",
    "Code",
    "DataLoss",
    "DeadlineExceeded",
    "Error",
    "FailedPrecondition",
    "Gemm",
    "Group",
    "GroupedGemm",
    "HostBuffer",
    "Internal",
    "InvalidArgument",
    "Launch",
    "Moe",
    "NotFound",
    "Operation",
    "OutOfRange",
    "Pending",
    "PermissionDenied",
    "RankInfo",
    "ResourceExhausted",
    "RingAttention",
    "RingAttentionBackward",
    "Session",
    "SymmetricBuffer",
    "Unavailable",
    "Unimplemented",
    "Unknown",
    "View",
    "__version__",
    "block_range",
    "connect",
    "library_path",
    "library_version",
    "protocol_version",
]
