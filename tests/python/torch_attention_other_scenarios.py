"""Attention of mkernel.torch as others call it: ring-flash-attention's functions, PyTorch's context parallelism."""
import inspect
import unittest.mock

from rank import raises
from torch_attention_rank import Whole, places
from torch_rank import RANK, SOCKET, TIMEOUT, WORLD, dist, end, operand, start, torch

import mkernel.torch
from mkernel.torch import context_parallel as ours
from mkernel.torch import ring_flash_attn as functions

FORMS = ("ring_flash_attn", "zigzag_ring_flash_attn")
CONTIGUOUS = "ring_attention: causal over contiguous parts"
OF_LSE = "ring_attention_backward: the loss depends on lse"
# The parameters behind the operands, and their defaults, as that package has them.
PARAMETERS = {"dropout_p": 0.0, "softmax_scale": None, "causal": False, "window_size": (-1, -1), "alibi_slopes": None,
              "deterministic": False, "return_attn_probs": False, "group": None}


def ring_flash_attn():
    """Each form against fp64, packed or not, with its gradients; where the two layouts differ."""
    start()
    group = dist.new_group(list(range(WORLD)))
    mkernel.torch.init(group, socket=SOCKET, timeout=TIMEOUT)
    for seed, form in enumerate(FORMS):
        for causal in (False, True):
            by_torch = causal and form == "ring_flash_attn"
            mkernel.torch.reset_counters()
            whole = Whole(10 * seed, 4 * WORLD, causal=causal, heads=(2, 2), scale=0.2)
            rows = places(4 * WORLD, "zigzag" if causal and not by_torch else "contiguous")
            for packed in ("", "kv", "qkv"):
                leaves = [x[:, rows].requires_grad_() for x in whole.given]
                operands = {"": leaves, "kv": [leaves[0], torch.stack(leaves[1:], 2)], "qkv": [torch.stack(leaves, 2)]}[packed]
                call = getattr(functions, f"{form}_{packed}packed_func" if packed else f"{form}_func")
                told = {name: value.default for name, value in list(inspect.signature(call).parameters.items())[len(operands):]}
                assert told == PARAMETERS and list(told) == list(PARAMETERS), told
                out, lse, nothing = call(*operands, 0.0, 0.2, causal, return_attn_probs=True, group=group if packed else None)
                assert nothing is None
                whole.check(out, lse, rows, parts_rounded=by_torch)
                assert torch.equal(call(*operands, softmax_scale=0.2, causal=causal, deterministic=True), out)
                whole.backward(out, lse, rows)
                whole.check_gradients(leaves, rows, 3 if by_torch else 1)
            told = mkernel.torch.counters()
            assert told["fallbacks"] == {**({CONTIGUOUS: 6} if by_torch else {}), OF_LSE: 3}, told
    q = operand(1, RANK, (2, 6, 4, 16))
    call = functions.zigzag_ring_flash_attn_func
    for keywords, words in (({"dropout_p": 0.1}, ["dropout_p = 0.1"]), ({"window_size": (128, 0)}, ["window_size = (128, 0)"]),
                            ({"alibi_slopes": torch.ones(4)}, ["alibi_slopes"])):
        for form in (call, functions.ring_flash_attn_func):
            with raises(mkernel.Unimplemented, *words):
                form(q, q, q, **keywords)
    with raises(mkernel.InvalidArgument, "5 positions", "even"):
        call(q[:, :5], q[:, :5], q[:, :5], causal=True)
    with raises(mkernel.InvalidArgument, "kv has shape (2, 6, 4, 16)", "2, heads"):
        functions.ring_flash_attn_kvpacked_func(q, q)
    end()


def too_old():
    """Whether this PyTorch cannot be patched, which patch_context_parallel() then says."""
    try:
        ours._module()
    except mkernel.Unimplemented:
        with raises(mkernel.Unimplemented, "_templated_ring_attention(group", torch.__version__):
            mkernel.torch.patch_context_parallel()
        assert torch.__version__.startswith(("2.8", "2.9"))
        return True
    return False


def context_parallel():
    """PyTorch's two inner functions beside those that stand in for them, on the same tensors, with its load balancing and without."""
    if too_old():
        return
    dist.init_process_group("gloo")
    module = ours._module()
    theirs = module._templated_ring_attention, module._templated_ring_attention_backward
    operators = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    group = dist.group.WORLD
    mkernel.torch.patch_context_parallel()
    mkernel.torch.patch_context_parallel()
    patched = module._templated_ring_attention, module._templated_ring_attention_backward
    assert patched == (ours.templated_ring_attention, ours.templated_ring_attention_backward)
    for initialized in (False, True):
        if initialized:
            mkernel.torch.init(socket=SOCKET, timeout=TIMEOUT)
        for seed, (balanced, causal) in enumerate(((True, True), (False, True), (False, False))):
            mkernel.torch.reset_counters()
            with unittest.mock.patch.object(module._cp_options, "enable_load_balance", balanced):
                whole = Whole(10 * seed, 6 * WORLD, causal=causal, heads=(2, 2), with_lse=False)
                rows = places(6 * WORLD, "zigzag" if balanced else "contiguous")
                q, k, v, d_out = (x[:, rows].transpose(1, 2) for x in (*whole.given, whole.d_out))
                results = [call(group, 2, operators, query=q, key=k, value=v, is_causal=causal, scale=None)
                           for call in (theirs[0], patched[0])]
                for out, lse in results:
                    whole.check(out.transpose(1, 2).contiguous(), lse, rows, parts_rounded=True)
                # Of fp32, so that both passes give nearly the same.
                wide = [x.float() for x in (q, k, v, d_out)]
                out, lse = theirs[0](group, 2, operators, *wide[:3], is_causal=causal)
                passes = [call(group, 2, backward, wide[3], "grad_out", *wide[:3], out, lse, causal, dropout_p=0.0, scale=None)
                          for call in (theirs[1], patched[1])]
                for their, our, wanted in zip(*passes, whole.gradients):
                    assert torch.allclose(their, our, rtol=1e-4, atol=1e-5)
                    assert torch.allclose(our.transpose(1, 2).double(), wanted[:, rows], rtol=1e-4, atol=1e-5)
            told = mkernel.torch.counters()
            reason = "" if initialized and balanced == causal else \
                "causal over contiguous parts" if causal and not balanced else "init() was not called for the process group"
            wanted = {f"_templated_ring_attention{part}: {reason}": 1 for part in ("", "_backward")} if reason else \
                {"ring_attention_backward: dtype torch.float32": 1}
            assert told["fallbacks"] == wanted and told.get("launches", 0) == (0 if reason else 1), (told, wanted)
    by_others(module, group, operators, q, k, v)
    mkernel.torch.unpatch_context_parallel()
    mkernel.torch.unpatch_context_parallel()
    assert (module._templated_ring_attention, module._templated_ring_attention_backward) == theirs
    end()


def by_others(module, group, operators, q, k, v):
    """What PyTorch's own does, or refuses."""
    for keywords, reason, kind in (
        ({"is_causal": False}, "load balancing without is_causal", RuntimeError),
        ({"is_causal": True, "attn_mask": torch.zeros(1)}, "attn_mask is set", (RuntimeError, TypeError, ValueError)),
        ({"is_causal": True, "dropout_p": 0.5}, "dropout_p is set", RuntimeError),
    ):
        mkernel.torch.reset_counters()
        with unittest.mock.patch.object(module._cp_options, "enable_load_balance", True):
            try:
                ours.templated_ring_attention(group, 2, operators, q, k, v, **keywords)
                raise AssertionError(f"{keywords}: nothing was raised")
            except kind:
                pass
        told = mkernel.torch.counters()["fallbacks"]
        assert told == {f"_templated_ring_attention: {reason}": 1}, told


def by_dtensor():
    """The operators of ATen on DTensors that are split along the sequence, as context_parallel() has them, forward and backward."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    if too_old():
        return
    start()
    module = ours._module()
    mesh = init_device_mesh("cpu", (WORLD,))
    whole = Whole(1, 6 * WORLD, causal=True, heads=(2, 2), with_lse=False)
    rows = places(6 * WORLD, "zigzag")
    q, k, v, d_out = (x[:, rows].transpose(1, 2).contiguous() for x in (*whole.given, whole.d_out))
    mkernel.torch.patch_context_parallel()
    module._enable_cp_dtensor_dispatcher()
    for name, arguments in (("flash", (0.0, True)), ("efficient", (None, True, 0.0, True)), ("cudnn", (None, True, 0.0, True))):
        mkernel.torch.reset_counters()
        op = getattr(torch.ops.aten, f"_scaled_dot_product_{name}_attention").default
        leaves = [DTensor.from_local(x, mesh, [Shard(2)]).detach().requires_grad_() for x in (q, k, v)]
        out, lse, *rest = op(*leaves, *arguments)
        assert len(rest) + 2 == len(op._schema.returns), (name, len(rest))
        assert lse.dim() == (4 if name == "cudnn" else 3)
        local = [x.to_local().detach() for x in (out, lse)]
        whole.check(local[0].transpose(1, 2).contiguous(), local[1].reshape(2, 2, -1), rows)
        out.backward(DTensor.from_local(d_out, mesh, [Shard(2)]))
        for leaf, wanted in zip(leaves, whole.gradients):
            gradient = leaf.grad.to_local().transpose(1, 2).double()
            assert torch.allclose(gradient, wanted[:, rows], rtol=0.03, atol=0.03), (name, (gradient - wanted[:, rows]).abs().max())
        told = mkernel.torch.counters()
        assert told["launches"] == 2 and not told["fallbacks"], (name, told)
    module._disable_cp_dtensor_dispatcher()
    mkernel.torch.unpatch_context_parallel()
    end()
