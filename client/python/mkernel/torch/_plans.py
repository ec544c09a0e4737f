"""The operations of one group, made when a shape is first seen and kept for the next time."""

import ctypes
from typing import Any, NamedTuple, Optional, Sequence, Union

import torch

from mkernel.errors import FailedPrecondition, ResourceExhausted
from mkernel.group import Group
from mkernel.operations import Gemm, GroupedGemm, Launch, Moe, Operation, Pending
from mkernel.torch import _extension
from mkernel.torch._options import Options, forget, totals


class GemmKey(NamedTuple):
    """What makes a GEMM operation. The fields of the group's ag_gemm(), gemm_rs() and gemm_ar()."""

    kind: str
    m: int
    n: int
    k: int
    dtype: str
    b_layout: str
    executor: str
    sms: int
    more_n: "tuple[int, ...]" = ()

    def __str__(self) -> str:
        n = "+".join(str(n) for n in (self.n, *self.more_n))
        return f"{self.kind} m={self.m} n={n} k={self.k} {self.dtype} {self.b_layout} {self.executor}"

    def make(self, group: Group) -> Gemm:
        make: Any = getattr(group, self.kind)
        rest: "dict[str, Any]" = {"dtype": self.dtype, "b_layout": self.b_layout, "executor": self.executor, "sms": self.sms}
        if self.more_n:
            rest["more_n"] = self.more_n
        operation: Gemm = make(self.m, self.n, self.k, **rest)
        return operation


class MoeKey(NamedTuple):
    """What makes a MoE operation. The fields of the group's moe()."""

    max_tokens: int
    hidden: int
    n: int
    intermediate: int
    experts: int
    topk: int
    dtype: str
    w_layout: str
    capacity: int
    executor: str
    sms: int = 0
    weights_on_input: bool = False
    shared_intermediate: int = 0

    def __str__(self) -> str:
        sizes = f"max_tokens={self.max_tokens} hidden={self.hidden} n={self.n} intermediate={self.intermediate}"
        capacity = f" capacity={self.capacity}" if self.capacity else ""
        routing = f"experts={self.experts} topk={self.topk}{capacity}"
        on_input = " weights_on_input" if self.weights_on_input else ""
        shared = f" shared_intermediate={self.shared_intermediate}" if self.shared_intermediate else ""
        return f"moe_dispatch_gemm {sizes} {routing}{on_input}{shared} {self.dtype} {self.w_layout} {self.executor}"

    def make(self, group: Group) -> Moe:
        return group.moe(**self._asdict())


class GroupedKey(NamedTuple):
    """What makes a grouped GEMM. The fields of the group's grouped_gemm()."""

    max_rows: int
    k: int
    n: int
    groups: int
    dtype: str
    b_layout: str
    executor: str
    sms: int = 0

    def __str__(self) -> str:
        sizes = f"max_rows={self.max_rows} k={self.k} n={self.n} groups={self.groups}"
        return f"grouped_gemm {sizes} {self.dtype} {self.b_layout} {self.executor}"

    def make(self, group: Group) -> GroupedGemm:
        return group.grouped_gemm(**self._asdict())


class AttentionKey(NamedTuple):
    """What makes an attention operation. The fields of the group's methods, of which those of a rank alone have `keys` and `window`, and
    all but the backward pass of ring attention `max_sequences`."""

    kind: str
    batch: int
    sequence: int
    heads: int
    kv_heads: int
    head_dim: int
    causal: bool
    scale: float
    dtype: str
    executor: str
    sms: int = 0
    keys: Optional[int] = None
    max_sequences: Optional[int] = None
    window: "Optional[tuple[int, int]]" = None

    def __str__(self) -> str:
        keys = "" if self.keys is None else f" keys={self.keys}"
        if self.max_sequences is not None:
            keys += f" max_sequences={self.max_sequences}"
        sizes = f"batch={self.batch} sequence={self.sequence}{keys} heads={self.heads} kv_heads={self.kv_heads} head_dim={self.head_dim}"
        scale = f" scale={self.scale:g}" if self.scale else ""
        window = "" if self.window is None else " window={},{}".format(*self.window)
        return f"{self.kind} {sizes} {'causal' if self.causal else 'full'}{window}{scale} {self.dtype} {self.executor}"

    def make(self, group: Group) -> Operation:
        fields = {field: value for field, value in self._asdict().items() if field != "kind" and value is not None}
        operation: Operation = getattr(group, self.kind)(**fields)
        return operation


PlanKey = Union[GemmKey, MoeKey, GroupedKey, AttentionKey]
Operands = Union[None, torch.Tensor, "Sequence[torch.Tensor]"]


def _address(tensors: Operands) -> "int | tuple[int, ...]":
    if tensors is None:
        return 0
    return tensors.data_ptr() if isinstance(tensors, torch.Tensor) else tuple(tensor.data_ptr() for tensor in tensors)


class _Number:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


# One that the extension counts on, where there is one.
Number: Any = _Number if _extension.extension is None else ctypes.c_int64


class Plan:
    """One operation, with the memory that padded operands are staged in."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self.captured = False  # by a CUDA graph, which may be replayed at any time
        self.last_used = Number()  # of the use, among those of all plans of the group
        self.agreed_rows: "set[int]" = set()  # of A, that all ranks have said to have at once
        self._staging: "dict[str, torch.Tensor]" = {}
        self._launches: "dict[tuple[float, int], Launch]" = {}

    def staging(self, field: str, like: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        """Memory for a padded operand. On the GPU it comes from torch's allocator, which knows which stream uses it; on the host
        it is kept, since a launch there is over when the call returns."""
        if like.device.type != "cpu":
            return like.new_empty(rows, columns)
        found = self._staging.get(field)
        if found is None:
            with torch.inference_mode(False):  # a tensor of inference mode could not be written outside of it
                found = self._staging[field] = torch.empty(rows, columns, dtype=like.dtype)
        return found

    def start(self, options: Options, stream: int, operands: "dict[str, Operands]", **numbers: int) -> "Pending | None":
        """Starts one launch on the cpu executor, or queues one on `stream` (None: there is nothing to wait for). `operands` by the
        fields of the operation's arguments, with None for what a call does not have; `numbers`: its other fields."""
        launch = self.launch(options)
        addresses = {field: _address(tensors) for field, tensors in operands.items()}
        launch.set_addresses(**addresses, **numbers)
        if self.operation.executor == "cuda":
            launch.enqueue(stream)
            return None
        pending = launch.launch()
        pending.operands = tuple(operands.values())
        return pending

    def launch(self, options: Options) -> Launch:
        """Bound without operands, which would live as long as the plan: the addresses are set at every launch."""
        key = (options.timeout, options.compute_threads)
        launch = self._launches.get(key)
        if launch is None:
            launch = self._launches[key] = self.operation._bind(self.operation.Arguments(), (), *key)
        return launch

    def raise_failure(self) -> None:
        """Once the stream is done: raises why a launch that was queued has failed, or was refused by every rank."""
        failure = self.operation.status()
        if failure is not None:
            raise failure

    def forget_staging(self) -> None:
        """After a wait that was given up: the launch may go on with it."""
        self._staging.clear()


class PlanCache:
    """The plans of one group, at most `capacity`. Creating and closing operations is collective, and all ranks make the same calls
    in the same order: so every rank finds the same plans here, and drops the same one when there are too many."""

    def __init__(self, group: Group, capacity: int) -> None:
        self._group, self.capacity = group, capacity
        self._plans: "dict[PlanKey, Plan]" = {}
        self.uses = Number()

    def __contains__(self, key: PlanKey) -> bool:
        return key in self._plans

    def __getitem__(self, key: PlanKey) -> Plan:
        return self._plans[key]

    def __len__(self) -> int:
        return len(self._plans)

    def get(self, key: PlanKey, captured: bool = False) -> Plan:
        """`captured`: by a CUDA graph: the plan stays until close(). Errors: ResourceExhausted, FailedPrecondition (captured before
        the first call), and those of the group's methods that make operations."""
        plan = self._plans.get(key)
        if plan is not None:
            totals["plans_hit"] += 1
        elif captured:
            raise FailedPrecondition(
                f"{key}: a CUDA graph cannot capture its first call, which makes memory and waits for the other ranks: call the "
                "operator once with these shapes before the capture"
            )
        else:
            plan = self._add(key)
        self.use(plan)
        plan.captured = plan.captured or captured
        return plan

    def use(self, plan: Plan) -> None:
        """It is the last to be dropped now."""
        self.uses.value = plan.last_used.value = self.uses.value + 1

    def _add(self, key: PlanKey) -> Plan:
        while len(self._plans) >= self.capacity:
            if not self._evict():
                raise ResourceExhausted(f"all {self.capacity} operations (max_plans of init()) are captured by CUDA graphs")
        while True:
            try:
                plan = self._plans[key] = Plan(key.make(self._group))
                break
            except ResourceExhausted:  # on every rank: lanes, regions, memory
                if not self._evict():
                    raise
        totals["plans_created"] += 1
        return plan

    def _evict(self) -> bool:
        """Drops the plan that was not used for longest and is in no graph; False: there is none."""
        free = [key for key, plan in self._plans.items() if not plan.captured]
        if not free:
            return False
        key = min(free, key=lambda key: self._plans[key].last_used.value)
        totals["plans_evicted"] += 1
        forget()
        self._plans.pop(key).operation.close()
        return True

    def raise_failure(self) -> None:
        """As that of each plan. After a refusal the other plans are asked the next time."""
        for plan in self._plans.values():
            plan.raise_failure()

    def close(self) -> None:
        """In the order that is the same on every rank."""
        forget()
        while self._plans:
            self._plans.pop(next(iter(self._plans))).operation.close()
