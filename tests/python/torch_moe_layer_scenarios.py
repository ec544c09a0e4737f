"""The MoE layers that stand in for Liger-Kernel's and DeepGEMM's, on ranks of their own."""
from rank import raises
from torch_moe_rank import MOST, Layer, close, tokens_of
from torch_rank import RANK, counted, dist, end, start, torch

import mkernel.torch


def liger():
    """Liger-Kernel's layer: weights as torch keeps them, any leading dimensions, ranks without tokens."""
    start()
    layer = Layer(sizes=(24, 24, 16))
    gate, up, down = (layer.part(w).transpose(1, 2).contiguous() for w in (layer.gate, layer.up, layer.down))
    moe_of = mkernel.torch.LigerExpertParallelFusedMoe(dist.group.WORLD, max_tokens=MOST)
    assert "max_tokens=11" in repr(moe_of) and list(moe_of.parameters()) == []
    mkernel.torch.reset_counters()
    for call in range(5):
        x, ids, weights = inputs = layer.inputs(call, tokens_of(RANK, call), skewed=call % 2 == 1)
        y = moe_of(*inputs, gate, up, down, layer.experts)
        close(y, layer.wanted(*inputs, True))
    assert mkernel.torch.counters()["copies"] == {}
    x, ids, weights = inputs = layer.inputs(9, 6)
    folded = [tensor.view(2, 3, -1) for tensor in (x, ids.long(), weights.bfloat16())]
    alone = mkernel.torch.LigerExpertParallelFusedMoe()
    y = alone(*folded, gate, up, down, layer.experts)
    assert y.shape == (2, 3, 24)
    close(y.view(6, 24), layer.wanted(x, ids, weights.bfloat16(), True))
    with raises(mkernel.Unimplemented, "w1 requires a gradient", "no backward"):
        alone(*folded, torch.nn.Parameter(gate), up, down, layer.experts)
    compiled_layer = torch.compile(alone, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled_layer(*folded, gate, up, down, layer.experts), y)
    end()


def mega():
    """DeepGEMM's functions: the caller fills a buffer, tokens differ from rank to rank and from call to call."""
    start()
    layer = Layer(experts=130, topk=4, sizes=(24, 24, 16))  # counts of so many experts take two exchanges
    group, make = dist.group.WORLD, mkernel.torch.get_symm_buffer_for_mega_moe
    l1 = torch.cat([layer.part(layer.gate), layer.part(layer.up)], 2).transpose(1, 2).contiguous()
    l2 = layer.part(layer.down).transpose(1, 2).contiguous()
    same = mkernel.torch.transform_weights_for_mega_moe(l1, l2)
    assert same[0] is l1 and same[1] is l2
    buffer = make(group, layer.experts, MOST, layer.topk, 24, 16)
    stats = torch.full((l1.shape[0],), 5, dtype=torch.int32)
    received = torch.full((layer.experts,), 5)
    mkernel.torch.reset_counters()

    def call(number, stats=None, y=None):
        x, ids, weights = inputs = layer.inputs(number, tokens_of(RANK, number), skewed=number % 2 == 1)
        tokens = x.shape[0]
        buffer.x[:tokens].copy_(x)
        buffer.topk_idx[:tokens].copy_(ids)
        buffer.topk_weights[:tokens].copy_(weights)
        y = torch.empty_like(x) if y is None else y(tokens)
        mkernel.torch.bf16_mega_moe(y, *same, buffer, stats)
        close(y, layer.wanted(*inputs, True))
        return torch.bincount(ids.flatten(), minlength=layer.experts)

    for number in range(5):
        counts = call(number, stats)
        dist.all_reduce(counts)
        received += counts
        assert torch.equal(stats, received[layer.mine].to(torch.int32)), number
    call(1)
    call(2, y=lambda tokens: torch.empty(tokens, 48, dtype=torch.bfloat16)[:, ::2])
    told = mkernel.torch.counters()
    assert told["moe_layer"] == told["launches"] == 7 and told["plans_created"] == 1, told
    assert told["copies"] == {"topk_ids: torch.int64 becomes torch.int32": 7}, told
    y, run = torch.empty(4, 24, dtype=torch.bfloat16), mkernel.torch.bf16_mega_moe
    missing, invalid = mkernel.Unimplemented, mkernel.InvalidArgument
    for wrong_call, kind, words in (
        (lambda: run(y, *same, buffer, activation="gelu"), missing, ["activation = 'gelu'", "swiglu"]),
        (lambda: run(y, *same, buffer, activation_clamp=7.0), missing, ["activation_clamp = 7.0"]),
        (lambda: run(y, *same, buffer, shared_l1_weights=l1), invalid, ["shared_w1 given", "both"]),
        (lambda: run(y, *same, buffer, shared_l1_weights=l1[0], shared_l2_weights=l2[0]), invalid,
         ["shared_l2_weights has 16 columns", "num_shared_experts = 0"]),
        (lambda: make(group, 130, MOST, 4, 24, 16, num_shared_experts=-1), invalid, ["num_shared_experts = -1"]),
        (lambda: run(y, *same, buffer, stats.long()), invalid, ["recv_stats", "torch.int64", "torch.int32"]),
        (lambda: run(y, *same, buffer, stats[1:]), invalid, ["recv_stats", f"({len(stats)},)"]),
        (lambda: run(y.float(), *same, buffer), invalid, ["y has dtype torch.float32"]),
        (lambda: run(torch.empty(12, 24, dtype=y.dtype), *same, buffer), invalid, ["(12, 24)", "at most 11 rows"]),
        (lambda: run(y, l1[1:], l2, buffer), invalid, ["w1 of shape", f"of num_experts = 130 rank {RANK} of 4"]),
        (lambda: make(group, 130, MOST, 4, 24, 16, True), missing, ["use_fp8_dispatch = True"]),
        (lambda: make(group, 130, MOST, 4, 24, 16, mma_type="fp8xfp4"), missing, ["mma_type = 'fp8xfp4'"]),
        (lambda: make(group, 130, MOST, 4, 24, 16, activation="relu"), missing, ["activation = 'relu'"]),
        (lambda: make(group, 130, 0, 4, 24, 16), invalid, ["num_max_tokens_per_rank = 0"]),
        (lambda: mkernel.torch.transform_weights_for_mega_moe((l1, l1), (l2, l2)), missing, ["scaling factors"]),
        (lambda: mkernel.torch.transform_weights_for_mega_moe(l1.half(), l2), missing, ["torch.float16"]),
    ):
        with raises(kind, *words):
            wrong_call()
    # Refused by every rank; what was received is not counted then.
    # Two shared experts, which are one that is twice as wide.
    with_shared = make(group, 130, MOST, 4, 24, 16, num_shared_experts=2)
    inputs = layer.inputs(9, 5)
    for to, value in zip((with_shared.x, with_shared.topk_idx, with_shared.topk_weights), inputs):
        to[:5].copy_(value)
    y = torch.empty(5, 24, dtype=torch.bfloat16)
    shared = layer.shared()
    run(y, *same, with_shared, shared_l1_weights=shared["shared_w1"].t().contiguous(), shared_l2_weights=shared["shared_w2"].t().contiguous())
    close(y, layer.wanted(*inputs, True, shared=torch.ones(5)))
    y = y[:4]
    before = stats.clone()
    buffer.topk_idx[0, 0] = 130 if RANK == 3 else buffer.topk_idx[0, 0]
    with raises(mkernel.InvalidArgument, "rank 3: topk[0, 0] = 130"):
        run(y, *same, buffer, stats)
    assert torch.equal(stats, before)
    call(3, stats)
    with raises(invalid, "l2_weights of shape", "intermediate_hidden = 16"):
        run(y, l1, l2[:, :, 1:], buffer)
    buffer.destroy()
    with raises(mkernel.FailedPrecondition, "destroy()"):
        run(y, *same, buffer)
    end()
