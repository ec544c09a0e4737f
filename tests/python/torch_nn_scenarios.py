"""The layers of mkernel.torch.nn against the ordinary layer that they are parts of, in fp64."""
import warnings

from torch_rank import RANK, WORLD, close, dist, end, operand, start, torch

from mkernel.torch.nn import ColumnParallelLinear, RowParallelLinear


def whole_linear(features, out, bias):
    linear = torch.nn.Linear(features, out, bias=bias, dtype=torch.bfloat16)
    with torch.no_grad():
        for index, parameter in enumerate(linear.parameters()):
            parameter.copy_(operand(50 + index, 0, parameter.shape))
    return linear


def part_of(tensor, dim):
    return tensor.chunk(WORLD, dim)[RANK]


def compared(kind, dim, bias, compile_it):
    """One layer, forward and backward; the loss is the sum over ranks of what each computes from its own part."""
    given, dim = dim, dim % 3
    features, out, shape = 4 * WORLD, 2 * WORLD, [3, 2, 4 * WORLD]
    shape[dim] *= WORLD
    linear = whole_linear(features, out, bias)
    reference = torch.nn.Linear(features, out, bias=bias, dtype=torch.float64)
    reference.load_state_dict({key: value.double() for key, value in linear.state_dict().items()})
    layer = kind.from_linear(linear, dim=given)
    x, cotangent = operand(60, 0, shape), operand(61, 0, [*shape[:-1], out])
    wanted_x = x.double().requires_grad_()
    wanted = reference(wanted_x)
    (wanted * cotangent.double()).sum().backward()
    inward, outward = (dim, 2) if kind is ColumnParallelLinear else (2, dim)
    mine = part_of(x, inward).clone().requires_grad_()
    run = torch.compile(layer, backend="aot_eager", fullgraph=True) if compile_it else layer
    y = run(mine)
    close(y, part_of(wanted.detach(), outward), features, 2)
    (y * part_of(cotangent, outward)).sum().backward()
    close(mine.grad, part_of(wanted_x.grad, inward), out, 2)
    rows, columns = (0, None) if kind is ColumnParallelLinear else (None, 1)
    split = rows if rows is not None else columns
    close(layer.weight.grad, part_of(reference.weight.grad, split), 0.1, 2)
    assert layer.weight.shape == part_of(linear.weight, split).shape
    if bias:
        gradient = reference.bias.grad
        close(layer.bias.grad, part_of(gradient, 0) if kind is ColumnParallelLinear else gradient, 6.0 * WORLD, 2)
    else:
        assert layer.bias is None


def layers():
    warnings.simplefilter("ignore")
    start()
    for kind in (ColumnParallelLinear, RowParallelLinear):
        for dim in (0, 1):
            for bias in (False, True):
                compared(kind, dim, bias, False)
        compared(kind, 0, True, True)
        compared(kind, -2, False, False)
    # Made without an ordinary layer; in a process group of its own.
    torch.manual_seed(RANK)
    up, down = ColumnParallelLinear(8, 4 * WORLD, process_group=dist.group.WORLD), RowParallelLinear(4 * WORLD, 8, bias=False)
    assert up.weight.shape == (4, 8) and down.weight.shape == (8, 4) and up.bias.shape == (4,) and down.bias is None
    assert "in_features=8" in repr(up) and (up.weight.abs() <= 8 ** -0.5).all() and up.weight.any()
    assert down(up(operand(1, RANK, (4, 8)))).shape == (4, 8)
    end()
