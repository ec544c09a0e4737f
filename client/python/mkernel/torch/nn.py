"""Tensor-parallel linear layers with sequence parallelism, on the fused operators.

Both keep one part of an ordinary linear layer's weight. Outside of them activations are split along one dimension (`dim`, the
sequence; counted from the last one if it is negative) over the ranks of the process group; between a column-parallel and a row-parallel
layer they are split along features."""

from typing import Any, Optional, TypeVar

import torch
import torch.distributed as dist

from mkernel._arguments import boolean, integer
from mkernel.errors import InvalidArgument
from mkernel.torch._groups import process_group_of

MOST = 2**31 - 1


class _SumOfGradients(torch.autograd.Function):
    """A parameter that all ranks hold and each uses for its own rows: its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, parameter: torch.Tensor, group_name: str) -> torch.Tensor:
        ctx.group_name = group_name
        return parameter.view_as(parameter)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        total = torch.ops._c10d_functional.all_reduce(gradient.contiguous(), "sum", ctx.group_name)
        return torch.ops._c10d_functional.wait_tensor(total), None


_Layer = TypeVar("_Layer", bound="_ParallelLinear")


class _ParallelLinear(torch.nn.Module):
    split = ""  # which of in_features and out_features is split over the ranks

    def __init__(self, in_features: int, out_features: int, bias: bool = True, *, process_group: Optional[Any] = None,
                 dim: int = 0, device: Any = None, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        in_features, out_features = integer("in_features", in_features, 1, MOST), integer("out_features", out_features, 1, MOST)
        bias, dim = boolean("bias", bias), integer("dim", dim, -64, 63)
        sizes = {"out_features": out_features, "in_features": in_features}
        group = process_group_of("process_group", process_group)
        sizes[self.split] = _part(self.split, sizes[self.split], group)
        shape = tuple(sizes.values())
        factory = {"device": device, "dtype": dtype}
        self.in_features, self.out_features, self.dim = in_features, out_features, dim
        self.group_name = str(group.group_name)
        self.weight = torch.nn.Parameter(torch.empty(shape, **factory))
        self.bias: Optional[torch.nn.Parameter] = None
        if bias:
            self.bias = torch.nn.Parameter(torch.empty(shape[0], **factory))
        self.reset_parameters()

    @classmethod
    def from_linear(cls: "type[_Layer]", linear: torch.nn.Linear, *, process_group: Optional[Any] = None, dim: int = 0) -> "_Layer":
        """This rank's part of `linear`, which is the same on every rank."""
        if not isinstance(linear, torch.nn.Linear):
            raise TypeError(f"linear is of type {type(linear).__name__}, needed is torch.nn.Linear")
        layer = cls(linear.in_features, linear.out_features, linear.bias is not None, process_group=process_group, dim=dim,
                    device=linear.weight.device, dtype=linear.weight.dtype)
        rank = dist.get_rank(process_group_of("process_group", process_group))
        with torch.no_grad():
            for mine, whole in ((layer.weight, linear.weight), (layer.bias, linear.bias)):
                if mine is None:
                    continue
                for dimension, part in enumerate(mine.shape):
                    if part != whole.shape[dimension]:
                        whole = whole.narrow(dimension, rank * part, part)
                mine.copy_(whole)
        return layer

    def reset_parameters(self) -> None:
        """As torch.nn.Linear; seed each rank on its own."""
        bound = self.in_features**-0.5
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.uniform_(-bound, bound)

    def _dim_of(self, x: torch.Tensor) -> int:
        return self.dim if self.dim >= 0 else self.dim + x.dim()

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, dim={self.dim}"


class ColumnParallelLinear(_ParallelLinear):
    """y = gather(x, dim) weight^T + bias, with the rank's part of the rows of the weight: AllGather+GEMM; backward
    GEMM+ReduceScatter, and the gathered x once more for the weight.

    x: the rank's part along `dim`; y: whole along `dim`, out_features / world_size features. `bias` is split as the weight is.
    dtype: torch.bfloat16 or torch.float16; any under torch.autocast(), which has the rule of torch.nn.Linear. mkernel.torch.init() must have been called for the process group."""

    split = "out_features"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, results = torch.ops.mkernel.fused_all_gather_matmul(x, [self.weight.t()], self._dim_of(x), self.group_name, return_A=False)
        y: torch.Tensor = results[0]
        return y if self.bias is None else y + self.bias.to(y.dtype)


class RowParallelLinear(_ParallelLinear):
    """y = scatter(sum over ranks of x weight^T, dim) + bias, with the rank's part of the columns of the weight:
    GEMM+ReduceScatter; backward AllGather+GEMM.

    x: whole along `dim`, in_features / world_size features; y: the rank's part along `dim`. Every rank holds the whole bias, and
    its gradient is summed over the ranks. Otherwise as ColumnParallelLinear."""

    split = "in_features"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.ops.mkernel.fused_matmul_reduce_scatter(x, self.weight.t(), "sum", self._dim_of(x), self.group_name)
        return y if self.bias is None else y + _SumOfGradients.apply(self.bias, self.group_name).to(y.dtype)


def _part(field: str, features: int, process_group: Any) -> int:
    world = dist.get_world_size(process_group)
    if features % world:
        raise InvalidArgument(f"{field} = {features} is no multiple of the {world} ranks")
    return features // world
