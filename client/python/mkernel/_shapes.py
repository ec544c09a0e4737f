"""Shapes and options of operations, as the C ABI has them."""

from typing import Any, Optional, Sequence

from mkernel import _abi
from mkernel._arguments import boolean, integer, items, number, text
from mkernel._operation import DTYPES, EXECUTORS, I64_MAX, LAYOUTS, choice
from mkernel.errors import InvalidArgument


def sizes(extents: "dict[str, Any]") -> "dict[str, int]":
    """Whatever fits into 64 bits: the ranks compare and refuse the rest together."""
    return {field: integer(field, value, -I64_MAX - 1, I64_MAX) for field, value in extents.items()}


def gemm_shape(m: int, n: int, k: int, dtype: str, b_layout: str, more_n: Sequence[int] = ()) -> _abi.GemmShape:
    more_n = items("more_n", more_n)
    if len(more_n) > _abi.MOST_MORE_B:
        raise InvalidArgument(f"more_n has {len(more_n)} numbers, at most {_abi.MOST_MORE_B} are allowed")
    more = sizes({f"more_n[{index}]": n for index, n in enumerate(more_n)})
    if 0 in more.values():
        raise InvalidArgument("more_n has a 0: each b needs columns")
    shape = _abi.GemmShape(dtype=choice("dtype", dtype, DTYPES), b_layout=choice("b_layout", b_layout, LAYOUTS),
                           **sizes({"m": m, "n": n, "k": k}))
    shape.more_n = tuple(more.values())
    return shape


def attention_shape(batch: int, sequence: int, heads: int, head_dim: int, kv_heads: Optional[int], keys: Optional[int], causal: bool,
                    scale: float, dtype: str, max_sequences: Optional[int] = None,
                    window: "tuple[int, int]" = (-1, -1)) -> _abi.AttentionShape:
    packed = 0 if max_sequences is None else integer("max_sequences", max_sequences, 1, I64_MAX)
    limits = items("window", window)
    if len(limits) != 2:
        raise InvalidArgument(f"window = {window!r}, must be (left, right)")
    extents = {"batch": batch, "sequence": sequence, "heads": heads, "kv_heads": heads if kv_heads is None else kv_heads,
               "head_dim": head_dim, "keys": 0 if keys is None else keys, "max_sequences": packed,
               "window_left": limits[0], "window_right": limits[1]}
    return _abi.AttentionShape(has_window=1, scale=number("scale", scale), causal=boolean("causal", causal), dtype=choice("dtype", dtype, DTYPES),
                               **sizes(extents))


def options(executor: str, comm_ctas: int = 0, sms: int = 0, nic_gbytes: float = 0.0,
             machine: Optional[str] = None) -> _abi.OperationOptions:
    most = 2**31 - 1
    return _abi.OperationOptions(
        executor=choice("executor", executor, EXECUTORS),
        comm_ctas=integer("comm_ctas", comm_ctas, -most, most),
        sms=integer("sms", sms, -most, most),
        nic_gbytes=number("nic_gbytes", nic_gbytes),
        machine=None if machine is None else text("machine", machine),
    )
