"""The layers of mkernel.torch.nn against the ordinary layer that they are parts of, in fp64."""
import warnings

from rank import raises
from torch_rank import RANK, WORLD, close, dist, end, name_of, operand, start, torch

import mkernel.torch
from mkernel.operations import block_size
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


def autocast_layers():
    """Parameters and activations in fp32 under autocast, with the rule of torch.nn.Linear: results in the context's type, gradients in
    the parameters', and the bits of a layer that was cast by hand."""
    for kind, dtype, compile_it in ((ColumnParallelLinear, torch.bfloat16, True), (RowParallelLinear, torch.bfloat16, True),
                                    (RowParallelLinear, torch.float16, False)):
        linear = torch.nn.Linear(4 * WORLD, 2 * WORLD)
        with torch.no_grad():
            for index, parameter in enumerate(linear.parameters()):
                parameter.copy_(operand(70 + index, 0, parameter.shape, torch.float32))
        layer, by_hand = kind.from_linear(linear), kind.from_linear(linear).to(dtype)
        x = operand(72, RANK, (6 if kind is ColumnParallelLinear else 6 * WORLD, layer.weight.shape[1]), torch.float32).requires_grad_()
        cast = x.detach().to(dtype).requires_grad_()
        wanted = by_hand(cast)
        cotangent = operand(73, RANK, wanted.shape, dtype)
        (wanted * cotangent).sum().backward()
        for run in (layer, torch.compile(layer, backend="aot_eager", fullgraph=True)) if compile_it else (layer,):
            layer.zero_grad()
            x.grad = None
            with torch.autocast("cpu", dtype):
                assert torch.nn.functional.linear(x, layer.weight).dtype == dtype  # the rule
                y = run(x)
            assert y.dtype == dtype and torch.equal(y, wanted), (kind, y, wanted)
            (y * cotangent).sum().backward()
            for tensor, like in ((x, cast), (layer.weight, by_hand.weight), (layer.bias, by_hand.bias)):
                assert tensor.grad.dtype == torch.float32, tensor.grad
                assert torch.allclose(tensor.grad, like.grad.float(), atol=0.1, rtol=0.02), (tensor.grad, like.grad)
        with torch.autocast("cpu", enabled=False), raises(mkernel.torch.Refused, "A has dtype torch.float32"):
            layer(x)


def autocast_operators():
    """Every operator under autocast gives the bits that it gives with operands that were cast by hand."""
    ops, name, low = torch.ops.mkernel, name_of(None), torch.bfloat16

    def floats(seed, *shape):
        return operand(seed, RANK, shape, torch.float32)

    q, cu = floats(1, 1, 4, 2, 8), torch.tensor([0, 2, 4], dtype=torch.int32)
    ids, weights = torch.tensor([[0, 1], [1, 0]], dtype=torch.int32), floats(2, 2, 2).abs() + 1 / 3
    experts = block_size(2, WORLD, RANK)
    calls = {
        "all_gather": (lambda a, b, c: ops.fused_all_gather_matmul(a, [b, c], 0, name), (floats(3, 4, 6), floats(4, 6, 5), floats(5, 6, 3))),
        "reduce_scatter": (lambda a, b: ops.fused_matmul_reduce_scatter(a, b, "sum", 0, name), (floats(6, 2 * WORLD, 6), floats(7, 6, 5))),
        "all_reduce": (lambda a, b: ops.fused_matmul_all_reduce(a, b, "avg", name), (floats(8, 4, 6), floats(9, 6, 5))),
        "moe": (lambda x, w: ops.moe_dispatch_gemm(x, ids, weights, w, 2, name), (floats(10, 2, 8), floats(11, experts, 8, 4))),
        "layer": (lambda x, w1, w2, s1, s2: ops.moe_layer(x, ids, weights, w1, None, w2, 2, name, shared_w1=s1, shared_w2=s2),
                  (floats(12, 2, 8), floats(13, experts, 8, 8), floats(14, experts, 4, 8), floats(15, 8, 8), floats(16, 4, 8))),
        "grouped": (lambda a, b: mkernel.torch.grouped_mm(a, b, offs=torch.tensor([1, 4], dtype=torch.int32)), (floats(17, 4, 8), floats(18, 2, 8, 3))),
        "attention": (ops.attention, (q, q, q)),
        "ring": (lambda q, k, v: ops.ring_attention(q, k, v, True, None, name), (q, q, q)),
        "varlen": (lambda q, k, v: ops.ring_attention_varlen(q, k, v, cu, True, None, name), (q[0], q[0], q[0])),
    }
    mkernel.torch.reset_counters()
    for told, (call, operands) in calls.items():
        wanted = torch.utils._pytree.tree_leaves(call(*(x.to(low) for x in operands)))
        with torch.autocast("cpu", low):
            found = torch.utils._pytree.tree_leaves(call(*operands))
            assert "bf16" in str(mkernel.torch.explain("fused_matmul_all_reduce", *calls["all_reduce"][1], "sum", name))
        assert [x.dtype for x in found] == [x.dtype for x in wanted] and low in [x.dtype for x in found], (told, found)
        assert all(map(torch.equal, found, wanted)), (told, found, wanted)
    assert not mkernel.torch.counters()["fallbacks"]
    with torch.autocast("cpu", low):  # as torch.nn.Linear's: float64 stays what it is
        with raises(mkernel.torch.Refused, "A has dtype torch.float64"):
            ops.fused_matmul_all_reduce(floats(1, 4, 6).double(), floats(2, 6, 5).double(), "sum", name)


def autocast():
    warnings.simplefilter("ignore")
    start()
    autocast_layers()
    autocast_operators()
    end()


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
