"""The operations: planned once on all ranks, then launched any number of times."""

from typing import TYPE_CHECKING, Any, Optional, Sequence

from mkernel import _abi
from mkernel._arguments import Seconds, integer, items
from mkernel._library import lib
from mkernel._operands import Operand
from mkernel._operation import Launch, Operation, OperationHandle, Pending, block_range, block_size
from mkernel.errors import InvalidArgument

if TYPE_CHECKING:
    from mkernel.group import Group

__all__ = ["Gemm", "GroupedGemm", "Launch", "Moe", "Operation", "Pending", "block_range", "block_size"]


class Gemm(Operation):
    """AllGather+GEMM, GEMM+ReduceScatter or GEMM+AllReduce. With `rows` of rank r being block_range(m, world_size, r):

    ag_gemm   c[m, n]    = allgather(a[rows, k]) x b[k, n]; gathered[m, k], if given, gets allgather(a). With more_n it multiplies
              the same rows with further b: more_c[i][m, more_n[i]] = allgather(a) x more_b[i]
    gemm_rs   c[rows, n] = this rank's rows of the sum over ranks of a[m, k] x b[k, n]
    gemm_ar   c[m, n]    = the sum over ranks of a[m, k] x b[k, n]

    b lies [k, n] with b_layout="row_major" and [n, k] with "column_major". All are dense and row-major, of the operation's
    dtype; bf16 comes as uint16, as ml_dtypes.bfloat16 or by DLPack."""

    Arguments = _abi.GemmArguments
    _launch = lib.mk_gemm_launch
    _enqueue = lib.mk_gemm_enqueue

    def __init__(self, group: "Group", handle: OperationHandle, kind: str, shape: _abi.GemmShape, dtype: str, executor: str) -> None:
        super().__init__(group, handle, dtype, executor)
        m, n, k = shape.m, shape.n, shape.k
        rows = block_size(m, group.world_size, group.rank)
        self.what = kind
        self.a = Operand("a", dtype, (rows if kind == "ag_gemm" else m, k))
        self.b = Operand("b", dtype, (k, n) if shape.b_layout == _abi.ROW_MAJOR else (n, k))
        self.c = Operand("c", dtype, (rows if kind == "gemm_rs" else m, n), written=True)
        self.gathered = Operand("gathered", dtype, (m, k), written=True)
        self.more_b, self.more_c = [], []
        for index, more in enumerate(n for n in shape.more_n if n):
            self.more_b.append(Operand(f"more_b[{index}]", dtype, (k, more) if shape.b_layout == _abi.ROW_MAJOR else (more, k)))
            self.more_c.append(Operand(f"more_c[{index}]", dtype, (m, more), written=True))

    def bind(self, a: Any, b: Any, c: Any, *, gathered: Any = None, more_b: Sequence[Any] = (), more_c: Sequence[Any] = (),
             deadline: Optional[Seconds] = None, compute_threads: int = 0) -> Launch:
        """Checks the operands, for any number of launches. `deadline` in seconds: of every single wait of a launch; None: 30.
        `compute_threads`: of the cpu executor; 0: the hardware's threads / ranks of this node. Errors: InvalidArgument naming
        field, value and limit; TypeError."""
        operands = [(self.a, a), (self.b, b), (self.c, c)]
        if gathered is not None:
            if self.what != "ag_gemm":
                raise InvalidArgument(f"{self.what}: gathered is given, and only ag_gemm gathers rows")
            operands.append((self.gathered, gathered))
        for field, given, wanted in (("more_b", more_b, self.more_b), ("more_c", more_c, self.more_c)):
            given = items(f"{self.what}: {field}", given)
            if len(given) != len(wanted):
                raise InvalidArgument(f"{self.what}: {field} has {len(given)} operands, and more_n has {len(wanted)}")
            operands += zip(wanted, given)
        return self._bind(self.Arguments(), operands, deadline, compute_threads)


class Moe(Operation):
    """MoE dispatch+GEMM: y[t] = sum over j of weights[t, j] * expert[topk[t, j]](x[t]). Experts are spread over ranks by
    block_range(experts, world_size, rank), `mine` of them here.

    x [tokens, hidden], topk [tokens, topk] int32 (expert numbers, distinct within a row), weights [tokens, topk] float32,
    y [tokens, n]. intermediate = 0: w1 [mine, hidden, n], expert(x) = x w1. Else w1 [mine, hidden, 2 * intermediate],
    w2 [mine, intermediate, n], expert(x) = (silu(g) * u) w2 with [g | u] = x w1. With w1_up, w1 [mine, hidden, intermediate] is
    the half of g and w1_up that of u. w_layout="column_major" has the matrices of every expert transposed, as PyTorch keeps
    weights: w1 [mine, n or 2 * intermediate, hidden], w2 [mine, n, intermediate]. With weights_on_input y[t] = sum over j of
    expert[topk[t, j]](weights[t, j] * x[t]), where the product is rounded to the type of x.

    shared_intermediate > 0: every token also goes through a shared expert, whose weights every rank has: y[t] gets
    shared_weights[t] * shared(x[t]), with shared_w1 [hidden, 2 * shared_intermediate] and shared_w2 [shared_intermediate, n], or
    with shared_w1_up, in the layout of the other weights. shared_weights [tokens] is float32; None: all are 1.

    Every rank refuses a launch with the same error when topk has a bad entry or weights a NaN on any of them (InvalidArgument
    names the rank and the entry), or more rows come to a rank than `capacity` (ResourceExhausted). y stays as it was, and the group
    goes on. A launch that was queued on a stream is refused on the GPU, and status() tells it."""

    what = "moe_dispatch_gemm"
    Arguments = _abi.MoeArguments
    _launch = lib.mk_moe_launch
    _enqueue = lib.mk_moe_enqueue

    def __init__(self, group: "Group", handle: OperationHandle, shape: _abi.MoeShape, dtype: str, executor: str) -> None:
        super().__init__(group, handle, dtype, executor)
        self._shape = shape
        self._mine = block_size(shape.experts, group.world_size, group.rank)
        self.w1 = self._weights("w1", shape.hidden, 2 * shape.intermediate or shape.n)
        self.w2 = self._weights("w2", shape.intermediate, shape.n) if shape.intermediate else None

    def _weights(self, field: str, k: int, n: int, shared: bool = False) -> Operand:
        """`shared`: one matrix, not one of each expert."""
        matrix = (k, n) if self._shape.w_layout == _abi.ROW_MAJOR else (n, k)
        return Operand(field, self.dtype, matrix if shared else (self._mine, *matrix))

    def bind(self, x: Any, topk: Any, weights: Any, w1: Any, w2: Any, y: Any, *, w1_up: Any = None, shared_w1: Any = None,
             shared_w1_up: Any = None, shared_w2: Any = None, shared_weights: Any = None, tokens: Optional[int] = None,
             deadline: Optional[Seconds] = None, compute_threads: int = 0) -> Launch:
        """As Gemm.bind(). `tokens`: of this rank, at most max_tokens and free to differ between ranks and launches; None: the
        rows of x. w2 is None when intermediate = 0. `w1_up`: the second half of w1; None: w1 holds both. `shared_w1` and the
        others: None without a shared expert."""
        shape = self._shape
        if tokens is None:
            if not getattr(x, "shape", ()):
                raise InvalidArgument(f"{self.what}: tokens is needed, because x has no shape that says it")
            tokens = x.shape[0]
        tokens = integer(f"{self.what}: tokens", tokens, 0, shape.max_tokens)
        if w1_up is not None and not shape.intermediate:
            raise InvalidArgument(f"{self.what}: w1_up must be None, because intermediate = 0")
        operands = [
            (Operand("x", self.dtype, (tokens, shape.hidden)), x),
            (Operand("topk", "i32", (tokens, shape.topk)), topk),
            (Operand("weights", "f32", (tokens, shape.topk)), weights),
            (self.w1 if w1_up is None else self._weights("w1", shape.hidden, shape.intermediate), w1),
            (Operand("y", self.dtype, (tokens, shape.n), written=True), y),
        ]
        if self.w2 is not None:
            operands.append((self.w2, w2))
        elif w2 is not None:
            raise InvalidArgument(f"{self.what}: w2 must be None, because intermediate = 0")
        if w1_up is not None:
            operands.append((self._weights("w1_up", shape.hidden, shape.intermediate), w1_up))
        operands += self._shared(tokens, {"shared_w1": shared_w1, "shared_w1_up": shared_w1_up, "shared_w2": shared_w2,
                                          "shared_weights": shared_weights})
        return self._bind(self.Arguments(tokens=tokens), operands, deadline, compute_threads)

    def _shared(self, tokens: int, given: "dict[str, Any]") -> "list[tuple[Operand, Any]]":
        """What a launch has of the shared expert."""
        shape = self._shape
        inner = shape.shared_intermediate
        if not inner:
            for field, value in given.items():
                if value is not None:
                    raise InvalidArgument(f"{self.what}: {field} must be None, because shared_intermediate = 0")
            return []
        for field in ("shared_w1", "shared_w2"):
            if given[field] is None:
                raise InvalidArgument(f"{self.what}: {field} is None, and the operation has shared_intermediate = {inner}")
        halves = given["shared_w1_up"] is not None
        operands = [
            (self._weights("shared_w1", shape.hidden, inner if halves else 2 * inner, shared=True), given["shared_w1"]),
            (self._weights("shared_w2", inner, shape.n, shared=True), given["shared_w2"]),
        ]
        if halves:
            operands.append((self._weights("shared_w1_up", shape.hidden, inner, shared=True), given["shared_w1_up"]))
        if given["shared_weights"] is not None:
            operands.append((Operand("shared_weights", "f32", (tokens,)), given["shared_weights"]))
        return operands


class GroupedGemm(Operation):
    """The product of a rank alone: c[rows of group g] = a[rows of group g] x b[g].

    a [max_rows, k] has its rows sorted by group; ends [groups] int32 says behind which row each group ends, as `offs` of PyTorch's
    grouped products; c [max_rows, n]. b is [groups, k, n] with b_layout="row_major" and [groups, n, k] with "column_major".

    A launch is refused when a group ends before it begins or beyond max_rows (InvalidArgument names it). c stays as it was, and the
    group goes on. A launch that was queued on a stream is refused on the GPU, and status() tells it. `ends` is read while the launch
    runs, also by every replay of a graph."""

    _concerns_others = False
    what = "grouped_gemm"
    Arguments = _abi.GroupedGemmArguments
    _launch = lib.mk_grouped_gemm_launch
    _enqueue = lib.mk_grouped_gemm_enqueue

    def __init__(self, group: "Group", handle: OperationHandle, shape: _abi.GroupedGemmShape, dtype: str, executor: str) -> None:
        super().__init__(group, handle, dtype, executor)
        rows, k, n, groups = shape.max_rows, shape.k, shape.n, shape.groups
        self.a = Operand("a", dtype, (rows, k))
        self.ends = Operand("ends", "i32", (groups,))
        self.b = Operand("b", dtype, (groups, k, n) if shape.b_layout == _abi.ROW_MAJOR else (groups, n, k))
        self.c = Operand("c", dtype, (rows, n), written=True)

    def bind(self, a: Any, ends: Any, b: Any, c: Any, *, deadline: Optional[Seconds] = None, compute_threads: int = 0) -> Launch:
        """As Gemm.bind()."""
        operands = ((self.a, a), (self.ends, ends), (self.b, b), (self.c, c))
        return self._bind(self.Arguments(), operands, deadline, compute_threads)
