"""mkernel.h in ctypes: its constants, structs and functions. tests/python/test_abi.py compares this file with the header."""

from ctypes import (
    CDLL,
    POINTER,
    PyDLL,
    Structure,
    c_char,
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
    sizeof,
)
from typing import Any

BF16, F16 = 1, 2
ROW_MAJOR, COLUMN_MAJOR = 0, 1
CPU, CUDA = 0, 1
MAX_EXCHANGE_BYTES = 448
MOST_MORE_B = 3  # of a Gemm, beside b
SECRET_BYTES = 32


class Sized(Structure):
    """A struct that begins with its size. Made with keywords, the size is set."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(struct_size=sizeof(self), **fields)


class SessionOptions(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("socket", c_char_p),
        ("name", c_char_p),
        ("device", c_int32),
        ("weight", c_uint32),
        ("timeout_ms", c_uint32),
    ]


class GroupOptions(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("world_size", c_uint32),
        ("rank", c_uint32),
        ("lanes", c_uint32),
        ("region_capacity", c_uint32),
        ("timeout_ms", c_uint32),
        ("secret", c_char_p),
    ]


class RankInfo(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("node", c_uint32),
        ("local_rank", c_uint32),
        ("node_name", c_char * 64),
    ]


class GemmShape(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("m", c_int64),
        ("n", c_int64),
        ("k", c_int64),
        ("dtype", c_uint32),
        ("b_layout", c_uint32),
        ("more_n", c_int64 * MOST_MORE_B),
    ]


class GemmArguments(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("a", c_void_p),
        ("b", c_void_p),
        ("c", c_void_p),
        ("gathered", c_void_p),
        ("more_b", c_void_p * MOST_MORE_B),
        ("more_c", c_void_p * MOST_MORE_B),
    ]


class OperationOptions(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("executor", c_uint32),
        ("comm_ctas", c_int32),
        ("sms", c_int32),
        ("nic_gbytes", c_double),
        ("machine", c_char_p),
    ]


class MoeShape(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("max_tokens", c_int64),
        ("hidden", c_int64),
        ("n", c_int64),
        ("intermediate", c_int64),
        ("experts", c_int64),
        ("topk", c_int64),
        ("dtype", c_uint32),
        ("capacity", c_int64),
        ("w_layout", c_uint32),
        ("weights_on_input", c_uint32),
        ("shared_intermediate", c_int64),
    ]


class MoeArguments(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("tokens", c_int64),
        ("x", c_void_p),
        ("topk", c_void_p),
        ("weights", c_void_p),
        ("w1", c_void_p),
        ("w2", c_void_p),
        ("y", c_void_p),
        ("w1_up", c_void_p),
        ("shared_w1", c_void_p),
        ("shared_w1_up", c_void_p),
        ("shared_w2", c_void_p),
        ("shared_weights", c_void_p),
    ]


class AttentionShape(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("batch", c_int64),
        ("sequence", c_int64),
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("head_dim", c_int64),
        ("scale", c_double),
        ("causal", c_uint32),
        ("dtype", c_uint32),
        ("keys", c_int64),
        ("max_sequences", c_int64),
        ("has_window", c_uint32),
        ("window_left", c_int64),
        ("window_right", c_int64),
    ]


class AttentionArguments(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("q", c_void_p),
        ("k", c_void_p),
        ("v", c_void_p),
        ("out", c_void_p),
        ("lse", c_void_p),
        ("cu_seqlens_q", c_void_p),
        ("cu_seqlens_k", c_void_p),
    ]


class AttentionBackwardArguments(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("q", c_void_p),
        ("k", c_void_p),
        ("v", c_void_p),
        ("out", c_void_p),
        ("d_out", c_void_p),
        ("lse", c_void_p),
        ("d_q", c_void_p),
        ("d_k", c_void_p),
        ("d_v", c_void_p),
        ("cu_seqlens_q", c_void_p),
        ("cu_seqlens_k", c_void_p),
    ]


class GroupedGemmShape(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("max_rows", c_int64),
        ("k", c_int64),
        ("n", c_int64),
        ("groups", c_int64),
        ("dtype", c_uint32),
        ("b_layout", c_uint32),
    ]


class GroupedGemmArguments(Sized):
    _fields_ = [("struct_size", c_size_t), ("a", c_void_p), ("ends", c_void_p), ("b", c_void_p), ("c", c_void_p)]


class LaunchOptions(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("deadline_ms", c_uint32),
        ("compute_threads", c_int32),
    ]


_OUT = POINTER(c_void_p)  # of a handle
_NUMBER = POINTER(c_uint64)
_PUT = (c_int, c_void_p, c_uint32, c_uint32, c_void_p, c_uint64, c_uint32, c_uint64, c_uint64, c_uint32, _NUMBER)
_CREATE_GEMM = (c_int, c_void_p, POINTER(GemmShape), POINTER(OperationOptions), _OUT)

# Each function: what it returns, then its arguments. Handles and addresses are c_void_p.
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "mk_version": (c_char_p,),
    "mk_protocol_version": (c_uint32,),
    "mk_status_name": (c_char_p, c_int),
    "mk_last_error": (c_char_p,),
    "mk_connect": (c_int, POINTER(SessionOptions), _OUT),
    "mk_session_destroy": (None, c_void_p),
    "mk_session_count_fallback": (c_int, c_void_p),
    "mk_join": (c_int, c_void_p, POINTER(GroupOptions), _OUT),
    "mk_group_destroy": (None, c_void_p),
    "mk_group_rank": (c_uint32, c_void_p),
    "mk_group_world_size": (c_uint32, c_void_p),
    "mk_group_node_count": (c_uint32, c_void_p),
    "mk_group_rank_info": (c_int, c_void_p, c_uint32, POINTER(RankInfo)),
    "mk_group_status": (c_int, c_void_p),
    "mk_group_fail": (c_int, c_void_p, c_int, c_char_p),
    "mk_group_reject_launch": (c_int, c_void_p, c_int, c_char_p),
    "mk_group_leave": (c_int, c_void_p),
    "mk_barrier": (c_int, c_void_p),
    "mk_exchange": (c_int, c_void_p, c_void_p, c_size_t, c_void_p),
    "mk_symmetric_create": (c_int, c_void_p, c_uint64, _OUT),
    "mk_symmetric_gpu_create": (c_int, c_void_p, c_uint64, _OUT),
    "mk_symmetric_gpu_register": (c_int, c_void_p, c_void_p, c_uint64, _OUT),
    "mk_symmetric_data": (c_void_p, c_void_p),
    "mk_symmetric_region": (c_uint32, c_void_p),
    "mk_symmetric_peer": (c_void_p, c_void_p, c_uint32),
    "mk_symmetric_destroy": (None, c_void_p),
    "mk_host_buffer_create": (c_int, c_void_p, c_uint64, _OUT),
    "mk_host_buffer_register": (c_int, c_void_p, c_int, c_uint64, c_uint64, _OUT),
    "mk_host_buffer_data": (c_void_p, c_void_p),
    "mk_host_buffer_region": (c_uint32, c_void_p),
    "mk_host_buffer_destroy": (None, c_void_p),
    "mk_reserve_lanes": (c_int, c_void_p, c_uint32, POINTER(c_uint32)),
    "mk_put": _PUT,
    "mk_put_host": _PUT,
    "mk_signal": (c_int, c_void_p, c_uint32, c_uint32, c_uint32, _NUMBER),
    "mk_puts": (c_int, c_void_p, c_uint32, c_uint32, _NUMBER),
    "mk_wait_arrival": (c_int, c_void_p, c_uint32, c_uint32, c_uint64, c_uint32),
    "mk_wait_completed": (c_int, c_void_p, c_uint32, c_uint32, c_uint64, c_uint32),
    "mk_arrivals": (c_int, c_void_p, c_uint32, c_uint32, _NUMBER),
    "mk_activity_create": (c_int, c_void_p, _OUT),
    "mk_activity_destroy": (None, c_void_p),
    "mk_ag_gemm_create": _CREATE_GEMM,
    "mk_gemm_rs_create": _CREATE_GEMM,
    "mk_gemm_ar_create": _CREATE_GEMM,
    "mk_moe_create": (c_int, c_void_p, POINTER(MoeShape), POINTER(OperationOptions), _OUT),
    "mk_ring_attention_create": (c_int, c_void_p, POINTER(AttentionShape), POINTER(OperationOptions), _OUT),
    "mk_attention_create": (c_int, c_void_p, POINTER(AttentionShape), POINTER(OperationOptions), _OUT),
    "mk_attention_backward_create": (c_int, c_void_p, POINTER(AttentionShape), POINTER(OperationOptions), _OUT),
    "mk_ring_attention_backward_create": (c_int, c_void_p, POINTER(AttentionShape), POINTER(OperationOptions), _OUT),
    "mk_grouped_gemm_create": (c_int, c_void_p, POINTER(GroupedGemmShape), POINTER(OperationOptions), _OUT),
    "mk_gemm_launch": (c_int, c_void_p, POINTER(GemmArguments), POINTER(LaunchOptions), _OUT),
    "mk_moe_launch": (c_int, c_void_p, POINTER(MoeArguments), POINTER(LaunchOptions), _OUT),
    "mk_ring_attention_launch": (c_int, c_void_p, POINTER(AttentionArguments), POINTER(LaunchOptions), _OUT),
    "mk_attention_backward_launch": (c_int, c_void_p, POINTER(AttentionBackwardArguments), POINTER(LaunchOptions), _OUT),
    "mk_grouped_gemm_launch": (c_int, c_void_p, POINTER(GroupedGemmArguments), POINTER(LaunchOptions), _OUT),
    "mk_gemm_enqueue": (c_int, c_void_p, POINTER(GemmArguments), c_void_p, POINTER(LaunchOptions)),
    "mk_moe_enqueue": (c_int, c_void_p, POINTER(MoeArguments), c_void_p, POINTER(LaunchOptions)),
    "mk_ring_attention_enqueue": (c_int, c_void_p, POINTER(AttentionArguments), c_void_p, POINTER(LaunchOptions)),
    "mk_attention_backward_enqueue": (c_int, c_void_p, POINTER(AttentionBackwardArguments), c_void_p, POINTER(LaunchOptions)),
    "mk_grouped_gemm_enqueue": (c_int, c_void_p, POINTER(GroupedGemmArguments), c_void_p, POINTER(LaunchOptions)),
    "mk_operation_status": (c_int, c_void_p),
    "mk_operation_expected_seconds": (c_double, c_void_p),
    "mk_operation_destroy": (None, c_void_p),
    "mk_pending_wait": (c_int, c_void_p, c_uint32),
    "mk_pending_done": (c_int, c_void_p),
    "mk_pending_destroy": (None, c_void_p),
}

# These read a few words: giving up the interpreter's lock around them would cost more than they do.
KEEPING_THE_LOCK = frozenset(
    {
        "mk_version",
        "mk_protocol_version",
        "mk_status_name",
        "mk_last_error",
        "mk_session_count_fallback",
        "mk_group_rank",
        "mk_group_world_size",
        "mk_group_node_count",
        "mk_symmetric_data",
        "mk_symmetric_region",
        "mk_symmetric_peer",
        "mk_host_buffer_data",
        "mk_host_buffer_region",
        "mk_puts",
        "mk_arrivals",
        "mk_pending_done",
        "mk_pending_destroy",
    }
)


class Library:
    """The functions of libmkernel as attributes, with their prototypes set."""

    def __init__(self, path: str) -> None:
        self.path = path
        releasing, keeping = CDLL(path), PyDLL(path)
        self._releasing = releasing
        for name, (result, *arguments) in FUNCTIONS.items():
            function = getattr(keeping if name in KEEPING_THE_LOCK else releasing, name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def without_prototype(self, name: str) -> Any:
        """A function of FUNCTIONS that returns an int, and that takes c_void_p and byref() alone: nothing is converted, which is most of
        what a call costs. An int would lose its upper half."""
        function = self._releasing[name]
        function.restype = c_int
        return function

    def __getattr__(self, name: str) -> Any:  # reached for what is not in FUNCTIONS; tells type checkers that the rest exists
        raise AttributeError(name)
