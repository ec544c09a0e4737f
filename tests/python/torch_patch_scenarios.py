"""mkernel behind the operators of others: torch.ops.symm_mem, Inductor's pass for tensor parallelism, Megatron's linear layer."""
import os
import types
import warnings

from rank import raises, say, wait_for_line
from torch_rank import RANK, SOCKET, TIMEOUT, WORLD, close, dist, end, name_of, operand, start, torch

import mkernel.torch

SYMM = torch.ops.symm_mem
GATHER, SCATTER = "fused_all_gather_matmul", "fused_matmul_reduce_scatter"


def too_old():
    """Whether this PyTorch cannot be patched, which patch_symm_mem() then says."""
    if hasattr(torch.library, "get_kernel"):
        return False
    with raises(mkernel.Unimplemented, "2.9", torch.__version__):
        mkernel.torch.patch_symm_mem()
    return True


def symm_mem():
    """What mkernel has runs there, everything else as before, counted with its reason."""
    import torch.distributed._symmetric_memory as symmetric

    name = start()
    if too_old():
        return end()
    a, b = operand(1, RANK, (4 * WORLD, 6)), operand(2, RANK, (6, 5))
    with raises(NotImplementedError, "symm_mem::fused_all_gather_matmul"):
        SYMM.fused_all_gather_matmul(a, [b], 0, name)  # PyTorch has none for host memory
    assert mkernel.torch.explain(SYMM.fused_all_gather_matmul, a, [b], 0, name).why.endswith("patch_symm_mem() was not called")
    for _ in range(2):
        mkernel.torch.patch_symm_mem()
    full = torch.cat([operand(1, rank, (4 * WORLD, 6)).double() for rank in range(WORLD)])
    mkernel.torch.reset_counters()
    returned, (c,) = SYMM.fused_all_gather_matmul(a, [b], 0, name)
    close(c, full @ b.double())
    assert torch.equal(returned.double(), full)
    ours = SYMM.fused_matmul_reduce_scatter(a, b, "avg", 0, name)
    counters = mkernel.torch.counters()
    assert (counters[GATHER], counters[SCATTER], counters["launches"]) == (1, 1, 2) and not counters["fallbacks"], counters
    # PyTorch's definitions, for what mkernel refuses: the values are those of fp32, or of the dimension that mkernel has not.
    _, (c,) = SYMM.fused_all_gather_matmul(a.float(), [b.float()], 0, name, return_A=False)
    assert torch.allclose(c.double(), full @ b.double(), atol=1e-5)
    theirs = SYMM.fused_matmul_reduce_scatter(a.float(), b.float(), "avg", 0, name)
    assert torch.allclose(theirs, ours.float(), atol=0.05)
    wide = operand(3, RANK, (6 * WORLD, 5))
    _, (c,) = SYMM.fused_all_gather_matmul(a, [wide], 1, name, return_A=False)
    columns = torch.cat([operand(1, rank, (4 * WORLD, 6)) for rank in range(WORLD)], 1)
    close(c, columns.double() @ wide.double(), 6.0 * WORLD)
    pair = dist.new_group([0, 1])
    if RANK < 2:
        SYMM.fused_all_gather_matmul(a, [b], 0, name_of(pair))
    counters = mkernel.torch.counters()
    wanted = {f"{GATHER}: dtype torch.float32": 1, f"{SCATTER}: dtype torch.float32": 1,
              f"{GATHER}: gather_dim is the last dimension": 1}
    if RANK < 2 and WORLD > 2:
        wanted[f"{GATHER}: init() was not called for the process group"] = 1
    assert counters["fallbacks"] == wanted, counters
    told = mkernel.torch.explain(SYMM.fused_all_gather_matmul, a.float(), [b.float()], 0, name)
    assert told.path == "fallback" and "torch.float32" in told.why, told
    told = mkernel.torch.explain("symm_mem::fused_scaled_matmul_reduce_scatter")
    assert told.path == "fallback" and "no scaled" in told.why, told
    with raises(mkernel.InvalidArgument, "A has 1 dimensions"):  # wrong for both: no fallback
        SYMM.fused_all_gather_matmul(a[0], [b], 0, name)
    originals(symmetric, a, b, name, full)
    for _ in range(2):
        mkernel.torch.unpatch_symm_mem()
    with raises(NotImplementedError, "symm_mem::fused_all_gather_matmul"):
        SYMM.fused_all_gather_matmul(a, [b], 0, name)
    end()


def strides():
    """In host memory results have the strides that PyTorch's fake tensors promise, whoever makes them: compiled code asserts them."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    name = start()
    if too_old():
        return end()
    mkernel.torch.patch_symm_mem()
    calls = [("bf16", torch.bfloat16, GATHER, dim, shape) for dim, shape in ((0, (4, 6)), (0, (4, 3, 6)), (1, (4, 3, 6)), (2, (2, 4, 3, 6)))]
    calls += [(told, dtype, GATHER, len(shape) - 1, shape) for told, dtype, _, _, shape in calls[:2]]  # the last dimension
    calls += [("bf16", torch.bfloat16, SCATTER, dim, shape) for dim, shape in ((0, (4, 6)), (0, (4, 2, 6)), (1, (3, 4, 6)), (2, (2, 3, 4, 6)))]
    calls += [("f32", torch.float32, *rest) for _, _, *rest in calls]
    wrong = []
    for told, dtype, op, dim, shape in calls:
        a = operand(1, RANK, shape, dtype)
        last = op == GATHER and dim == len(shape) - 1
        b = operand(2, RANK, (shape[-1] * (WORLD if last else 1), 5), dtype)

        def call(a, b):
            if op == SCATTER:
                return [SYMM.fused_matmul_reduce_scatter(a, b, "avg", dim, name)]
            returned, results = SYMM.fused_all_gather_matmul(a, [b, b], dim, name)
            return [returned, *results]

        with FakeTensorMode() as mode:
            promised = [(x.shape, x.stride()) for x in call(mode.from_tensor(a), mode.from_tensor(b))]
        found = [(x.shape, x.stride()) for x in call(a, b)]
        if found != promised:
            wrong.append(f"{op} of {told} along {dim} of {shape}: {found}, promised are {promised}")
    assert not wrong, "\n".join(wrong)
    a, b = operand(1, RANK, (4, 3, 6), torch.float32), operand(2, RANK, (6, 5), torch.float32)
    compiled = torch.compile(lambda a, b: SYMM.fused_all_gather_matmul(a, [b], 1, name), fullgraph=True)  # nothing of it needs a compiler
    _, (c,) = compiled(a, b)
    full = torch.cat([operand(1, rank, (4, 3, 6), torch.float32) for rank in range(WORLD)], 1)
    assert torch.allclose(c, full @ b, atol=1e-5)
    alone = dist.new_group([RANK], use_local_synchronization=True)
    for group in (name, name_of(alone)):  # with init() and without
        for tensor in (a, a.bfloat16()):
            with raises(mkernel.InvalidArgument, "gather_dim = -2 is not 0..2"):  # as PyTorch on GPUs
                SYMM.fused_all_gather_matmul(tensor, [b.to(tensor.dtype)], -2, group)
            with raises(mkernel.InvalidArgument, "scatter_dim = 3 is not 0..2"):
                SYMM.fused_matmul_reduce_scatter(tensor, b.to(tensor.dtype), "sum", 3, group)
    end()


def counted():
    """Fallbacks by process group, for the test to find in mkctl. The session of the first group is with this rank's daemon, the
    session of the second group, which is this rank alone, with the other daemon."""
    name = start()
    mkernel.torch.patch_symm_mem()
    layers, forward = stand_in()
    mkernel.torch.patch_megatron(layers)
    a, b = operand(1, RANK, (4, 6)), operand(2, RANK, (6, 6))
    scaled = torch.library.get_kernel("symm_mem::fused_all_gather_scaled_matmul", "CUDA")
    key = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)

    def fall_back(name, group):
        """Three ways: another type, no sequence parallelism, an operator that mkernel does not have."""
        SYMM.fused_matmul_reduce_scatter(a.float(), b.float(), "sum", 0, group_name=name)
        with torch.no_grad():
            forward(a, b, None, sequence_parallel=False, tp_group=group)
        with raises(Exception):  # it needs a GPU
            scaled.call_boxed(key, a, [b], a, [b], 0, name, [None], [None], [None], [False])

    SYMM.fused_all_gather_matmul(a, [b], 0, name, return_A=False)  # a launch
    fall_back(name, dist.group.WORLD)
    alone = dist.new_group([RANK], use_local_synchronization=True)
    with torch.no_grad():
        forward(a, b, None, tp_group=None)
        forward(a, b, None, tp_group=alone)  # without init(): any session
    (other,) = set(os.environ["SOCKETS"].split(",")) - {SOCKET}
    mkernel.torch.init(alone, socket=other, timeout=TIMEOUT)
    fall_back(name_of(alone), alone)
    assert sum(mkernel.torch.counters()["fallbacks"].values()) == 8
    say("counted")
    wait_for_line()
    mkernel.torch.shutdown()
    fall_back(name, dist.group.WORLD)  # no session is left: only counters() counts
    assert sum(mkernel.torch.counters()["fallbacks"].values()) == 11
    dist.barrier()
    dist.destroy_process_group()


def originals(symmetric, a, b, name, full):
    """What was registered for CUDA is what ours falls back to, also the scaled operators. PyTorch's test mode lets it run here."""
    key = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
    patched = torch.library.get_kernel("symm_mem::fused_all_gather_matmul", "CUDA")
    mkernel.torch.reset_counters()
    with symmetric._test_mode():
        returned, (c,) = patched.call_boxed(key, a.float(), [b.float()], 0, name)
    assert torch.allclose(c.double(), full @ b.double(), atol=1e-5) and torch.equal(returned.double(), full)
    assert mkernel.torch.counters()["fallbacks"] == {f"{GATHER}: dtype torch.float32": 1}
    _, (c,) = patched.call_boxed(key, a, [b], 0, name)
    assert mkernel.torch.counters()["launches"] == 1
    mkernel.torch.reset_counters()
    scaled = torch.library.get_kernel("symm_mem::fused_all_gather_scaled_matmul", "CUDA")
    with raises(Exception):  # what it needs is a GPU; that it was reached is what counts
        scaled.call_boxed(key, a, [b], a, [b], 0, name, [None], [None], [None], [False])
    assert mkernel.torch.counters()["fallbacks"] == {"fused_all_gather_scaled_matmul: mkernel has no scaled matmul": 1}


def inductor():
    """torch.compile by Inductor with its pass for asynchronous tensor parallelism, on a sequence-parallel block with plain
    collectives: the compiled code calls mkernel. On a machine without a GPU the pass has to be told that symmetric memory is
    there."""
    import torch.distributed._functional_collectives as funcol
    import torch.distributed._symmetric_memory as symmetric
    from torch._inductor import config

    warnings.simplefilter("ignore")
    start()
    if too_old():
        return end()
    mkernel.torch.patch_symm_mem()

    def block(x, up, down):
        h = torch.relu(funcol.all_gather_tensor(x, 0, dist.group.WORLD) @ up.t())
        return funcol.reduce_scatter_tensor(h @ down.t(), "sum", 0, dist.group.WORLD)

    x, up, down = operand(1, RANK, (8, 16)), operand(2, RANK, (24, 16)), operand(3, RANK, (16, 24))
    full = torch.cat([operand(1, rank, (8, 16)).double() for rank in range(WORLD)])
    parts = [torch.relu(full @ operand(2, rank, (24, 16)).double().t()) @ operand(3, rank, (16, 24)).double().t()
             for rank in range(WORLD)]
    wanted, terms = sum(parts).chunk(WORLD)[RANK], sum(p.abs() for p in parts).chunk(WORLD)[RANK]
    mkernel.torch.reset_counters()
    with config.patch(_micro_pipeline_tp=True, compile_threads=1), symmetric._test_mode():
        y = torch.compile(block, backend="inductor", fullgraph=True)(x, up, down)
    close(y, wanted, terms + 24.0, 2)
    counters = mkernel.torch.counters()
    assert (counters[GATHER], counters[SCATTER], counters["launches"]) == (1, 1, 2) and not counters["fallbacks"], counters
    end()


def stand_in():
    """A module like megatron.core.tensor_parallel.layers, with the function's signature there, and a layer that calls it."""
    layers = types.ModuleType("layers")

    def linear_with_grad_accumulation_and_async_allreduce(input, weight, bias, gradient_accumulation_fusion, allreduce_dgrad,
                                                          sequence_parallel, grad_output_buffer=None, wgrad_deferral_limit=0,
                                                          tp_group=None, gtp_remat_size=1, output_dtype=None):
        layers.calls.append((sequence_parallel, gradient_accumulation_fusion))
        return torch.matmul(input, weight.t())

    layers.calls = []
    layers.linear_with_grad_accumulation_and_async_allreduce = linear_with_grad_accumulation_and_async_allreduce

    def forward(layer_input, weight, bias, **changes):
        arguments = {"input": layer_input, "weight": weight, "bias": bias, "gradient_accumulation_fusion": False,
                     "allreduce_dgrad": False, "sequence_parallel": True, "grad_output_buffer": None, "wgrad_deferral_limit": 0,
                     "tp_group": dist.group.WORLD, **changes}
        return layers.linear_with_grad_accumulation_and_async_allreduce(**arguments)

    return layers, forward


def megatron():
    start()
    layers, forward = stand_in()
    original = layers.linear_with_grad_accumulation_and_async_allreduce
    for _ in range(2):
        mkernel.torch.patch_megatron(layers)
    x, weight, bias = operand(1, RANK, (5, 2, 8)), operand(2, RANK, (6, 8)), operand(3, RANK, (6,))
    for tensor in (x, weight, bias):
        tensor.requires_grad_()
    y = forward(x, weight, bias)
    full = torch.cat([operand(1, rank, (5, 2, 8)).double() for rank in range(WORLD)])
    close(y, full @ weight.detach().double().t() + bias.detach().double(), 8, 2)
    cotangents = [operand(4, rank, y.shape) for rank in range(WORLD)]
    (y * cotangents[RANK]).sum().backward()
    of_x = sum(g.double() @ operand(2, rank, (6, 8)).double() for rank, g in enumerate(cotangents))
    close(x.grad, of_x.chunk(WORLD)[RANK], 6.0 * WORLD, 2)
    mine = cotangents[RANK].double().flatten(0, 1)
    close(weight.grad, mine.t() @ full.flatten(0, 1), 0, 2)
    close(bias.grad, mine.sum(0), 0, 4)
    assert not layers.calls
    mkernel.torch.reset_counters()
    alone = dist.new_group([RANK], use_local_synchronization=True)
    with torch.no_grad():
        forward(x, weight, None, tp_group=dist.group.WORLD)
        for changes in ({"sequence_parallel": False}, {"gradient_accumulation_fusion": True}, {"grad_output_buffer": []},
                        {"output_dtype": torch.float32}, {"gtp_remat_size": 2}, {"tp_group": None}, {"tp_group": alone}):
            forward(x, weight, None, **changes)
        forward(x.float(), weight.float(), None)
        with torch.autocast("cpu", torch.bfloat16):  # the second launch
            y = forward(x.float(), weight.float(), bias.float())
            assert y.dtype == torch.bfloat16
    reasons = ("sequence_parallel is off", "gradient_accumulation_fusion is set", "grad_output_buffer is set",
               "output_dtype is set", "gtp_remat_size is set", "tp_group is not given",
               "init() was not called for the process group", "dtype torch.float32")
    counters = mkernel.torch.counters()
    assert counters["fallbacks"] == {f"{original.__name__}: {reason}": 1 for reason in reasons}, counters
    assert len(layers.calls) == len(reasons) and counters["launches"] == 2
    layers.get_tensor_model_parallel_group_if_none = lambda group: group or dist.group.WORLD
    forward(x, weight, None, tp_group=None)
    assert len(layers.calls) == len(reasons)
    mkernel.torch.unpatch_megatron(layers)
    assert layers.linear_with_grad_accumulation_and_async_allreduce is original
    with raises(mkernel.FailedPrecondition, "has no linear_with_grad"):
        mkernel.torch.patch_megatron(types.ModuleType("other"))
    with raises(mkernel.FailedPrecondition, "Megatron cannot be imported"):
        mkernel.torch.patch_megatron()
    end()
