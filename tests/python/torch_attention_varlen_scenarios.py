"""Ring attention over sequences of different lengths: ring-flash-attention's varlen functions, written out from their contract."""
import inspect
import types
import warnings

from rank import raises
from torch_attention_rank import Whole, places
from torch_rank import RANK, SOCKET, TIMEOUT, WORLD, counted, dist, end, name_of, operand, start, torch

import mkernel.torch
from mkernel.torch import ring_flash_attn as functions
from mkernel.torch._attention_decide import Call, held_rows
from mkernel.torch._options import bucket_of
from mkernel.torch._varlen_packing import Packing

OPS = torch.ops.mkernel
NAME, BACKWARD_KIND = "ring_attention_varlen", "attention_backward"
COMPOSED = "k, v: rows of all ranks are gathered, and copied in the order of the sequences"
FORMS = ("ring_flash_attn_varlen", "zigzag_ring_flash_attn_varlen")
PARAMETERS = {"cu_seqlens": inspect.Parameter.empty, "max_seqlen": inspect.Parameter.empty, "dropout_p": 0.0, "softmax_scale": None,
              "causal": False, "window_size": (-1, -1), "alibi_slopes": None, "deterministic": False, "return_attn_probs": False,
              "group": None}


class Sequences:
    """Several of them, of which each rank holds `lengths`; `behind` rows at the end belong to none."""

    def __init__(self, seed, lengths, split, behind=0, **options):
        self.wholes = [Whole(seed + 10 * index, length * WORLD, batch=1, **options) if length else None
                       for index, length in enumerate(lengths)]
        self.rows = [places(length * WORLD, split) for length in lengths]
        ends = torch.tensor([0, *lengths]).cumsum(0)
        self.cu_seqlens = ends.to(torch.int32)
        self.parts = [slice(int(a), int(b)) for a, b in zip(ends, ends[1:])]
        self.behind = behind

    def _cat(self, of, like):
        """Of all sequences; `of` a whole one and the rows that this rank holds of it."""
        pieces = [of(whole, rows) for whole, rows in zip(self.wholes, self.rows) if whole is not None]
        return torch.cat((*pieces, like.new_ones(self.behind, *like.shape[1:]))).contiguous()

    def mine(self, device="cpu"):
        one = next(whole for whole in self.wholes if whole is not None)
        return [self._cat(lambda whole, rows: whole.given[index][0, rows], one.given[index][0]).to(device).requires_grad_()
                for index in range(3)]

    def check(self, out, lse, **options):
        for whole, rows, part in zip(self.wholes, self.rows, self.parts):
            if whole is not None:
                whole.check(out[part].unsqueeze(0), lse[:, part].unsqueeze(0).contiguous(), rows, **options)
        assert not out[self.parts[-1].stop:].any() and lse[:, self.parts[-1].stop:].eq(float("-inf")).all()

    def backward(self, out, lse):
        loss = 0
        for whole, rows, part in zip(self.wholes, self.rows, self.parts):
            if whole is not None:
                loss = loss + (out[part] * whole.d_out[0, rows].to(out.device)).sum()
                loss = loss + ((lse[:, part] * whole.d_lse[0][:, rows].to(lse.device)).sum() if whole.with_lse else 0)
        loss.backward()

    def check_gradients(self, leaves, roundings=1):
        for whole, rows, part in zip(self.wholes, self.rows, self.parts):
            if whole is not None:
                views = [types.SimpleNamespace(grad=x.grad[part].unsqueeze(0), device=x.device) for x in leaves]
                whole.check_gradients(views, rows, roundings)
        assert not any(x.grad[self.parts[-1].stop:].any() for x in leaves)


def composed():
    """Calls that were a gather and a launch of this rank alone."""
    return mkernel.torch.counters()["copies"].get(COMPOSED, 0)


def directly(function, *operands, **options):
    return function(*operands, **options)


def attended(sequences, zigzag, name, causal, scale=None, device="cpu", call=directly):
    """Forward and backward pass of this rank, checked; `call` calls the operator. Returns what it changed in the counters."""
    leaves, found = sequences.mine(device), []
    cu_seqlens = sequences.cu_seqlens.to(device)
    before = composed()
    changed = counted(lambda: found.extend(call(OPS.ring_attention_varlen, *leaves, cu_seqlens, causal, scale, name, zigzag=zigzag)))
    by_torch = "launches" not in changed
    assert by_torch or (composed() > before) == (causal and not zigzag)
    sequences.check(*found, parts_rounded=by_torch or device != "cpu")
    with_lse = any(whole is not None and whole.with_lse for whole in sequences.wholes)
    backward = counted(lambda: sequences.backward(*found))
    assert ("launches" in backward) == (not by_torch and not with_lse), backward
    # mkernel rounds what a part of a sequence gives of the gradients of keys.
    sequences.check_gradients(leaves, 1 if with_lse and not by_torch and device == "cpu" else 3)
    return changed


def values():
    """The operator: both types and layouts, empty sequences, rows behind the last one, heads that share keys, many lengths."""
    name = start()
    seed = 0
    for causal, zigzag in ((True, True), (True, False), (False, True)):
        split = "zigzag" if causal and zigzag else "contiguous"
        for dtype in (torch.bfloat16, torch.float16):
            for lengths, behind in (((6, 2, 14), 0), ((0, 4, 0, 0, 30, 2, 0), 5), ((64,), 0)):
                for heads in ((4, 2), (3, 3)):
                    seed += 100
                    sequences = Sequences(seed, lengths, split, behind, causal=causal, heads=heads, dtype=dtype, with_lse=seed % 200 == 0)
                    changed = attended(sequences, zigzag, name, causal)
                    own = {NAME, "launches", "plans_created", "plans_hit", "plans_evicted"}
                    assert changed["launches"] == 1 and set(changed) <= own, changed
        sequences = Sequences(seed + 50, (5, 1, 7) if split == "contiguous" else (2, 12), split, causal=causal, scale=0.3)
        attended(sequences, zigzag, name, causal, 0.3)
    told = mkernel.torch.counters()
    assert set(told["fallbacks"]) == {f"{NAME}_backward: the loss depends on lse"}, told
    assert set(told["copies"]) == {COMPOSED, "k, v: padded to a bucket of rows"}, told
    # One operation for all lengths within a bucket; the same bits from every call.
    sequences = [Sequences(seed + 7, lengths, "zigzag", causal=True) for lengths in ((8, 24, 32), (62, 2), (30, 4, 28))]
    mkernel.torch.reset_counters()
    results = [[OPS.ring_attention_varlen(*x.mine(), x.cu_seqlens, True, None, name) for _ in range(2)] for x in sequences]
    assert all(torch.equal(a, b) for one, other in results for a, b in zip(one, other))
    told = mkernel.torch.counters()
    assert told["plans_created"] == 2 and told["plans_hit"] == 4, told  # of 4 and of 6 parts of sequences
    empty, nothing = operand(1, RANK, (0, 4, 16)).requires_grad_(), torch.zeros(1, dtype=torch.int32)
    out, lse = OPS.ring_attention_varlen(empty, empty, empty, nothing, True, None, name)
    assert out.shape == (0, 4, 16) and lse.shape == (4, 0)
    out.sum().backward()
    few = operand(1, RANK, (3, 4, 16))
    out, lse = OPS.ring_attention_varlen(few, few, few, nothing, True, None, name)
    assert not out.any() and lse.eq(float("-inf")).all()
    end()


def ring_flash_attn():
    """Each function against fp64, packed or not, with its gradients."""
    start()
    group = dist.new_group(list(range(WORLD)))
    for form in FORMS:
        for causal in (False, True):
            split = "zigzag" if causal and form.startswith("zigzag") else "contiguous"
            for packed in ("", "kv", "qkv"):
                sequences = Sequences(10, (8, 2, 0, 10), split, causal=causal, heads=(2, 2), scale=0.2)
                leaves = sequences.mine()
                operands = {"": leaves, "kv": [leaves[0], torch.stack(leaves[1:], 1)], "qkv": [torch.stack(leaves, 1)]}[packed]
                call = getattr(functions, f"{form}_{packed}packed_func" if packed else f"{form}_func")
                told = {name: value.default for name, value in list(inspect.signature(call).parameters.items())[len(operands):]}
                assert told == PARAMETERS and list(told) == list(PARAMETERS), told
                out, lse, nothing = call(*operands, sequences.cu_seqlens, 10, 0.0, 0.2, causal, return_attn_probs=True,
                                         group=group if packed else None)
                assert nothing is None
                sequences.check(out, lse)
                again = call(*operands, cu_seqlens=sequences.cu_seqlens, max_seqlen=10, softmax_scale=0.2, causal=causal)
                assert torch.equal(again, out)
                sequences.backward(out, lse)
                sequences.check_gradients(leaves)
    q = operand(1, RANK, (6, 4, 16))
    for keywords, words in (({"dropout_p": 0.1}, ["dropout_p = 0.1"]), ({"window_size": (128, 0)}, ["window_size = (128, 0)"]),
                            ({"alibi_slopes": torch.ones(4)}, ["alibi_slopes"])):
        with raises(mkernel.Unimplemented, *words):
            functions.ring_flash_attn_varlen_func(q, q, q, torch.tensor([0, 6], dtype=torch.int32), 6, **keywords)
    with raises(mkernel.InvalidArgument, "kv has shape (6, 4, 16)", "[positions, 2, heads"):
        functions.zigzag_ring_flash_attn_varlen_kvpacked_func(q, q, torch.tensor([0, 6], dtype=torch.int32), 6)
    end()


def both(reason):
    """Fallbacks of the forward and the backward pass."""
    return {f"{NAME}: {reason}": 1, f"{NAME}_backward: {reason}": 1}


def fallbacks():
    """What PyTorch does instead, why, and what explain() says of it."""
    dist.init_process_group("gloo")
    name = name_of(None)
    lengths = (4, 0, 10)
    attended(Sequences(1, lengths, "zigzag", causal=True, with_lse=False), True, name, True)
    assert mkernel.torch.counters()["fallbacks"] == both("init() was not called for the process group")
    mkernel.torch.init(socket=SOCKET, timeout=TIMEOUT)
    for causal, zigzag in ((True, True), (True, False), (False, False)):
        split = "zigzag" if causal and zigzag else "contiguous"
        for options, reason in (({"dtype": torch.float32}, "dtype torch.float32"), ({"scale": -0.2}, "scale is not above 0")):
            mkernel.torch.reset_counters()
            sequences = Sequences(2, lengths, split, 3, causal=causal, with_lse=False, **options)
            attended(sequences, zigzag, name, causal, options.get("scale"))
            assert mkernel.torch.counters()["fallbacks"] == both(reason)
    mkernel.torch.reset_counters()
    many = torch.arange(0, 2052, 2, dtype=torch.int32)
    q = operand(3, RANK, (2050, 1, 8))
    out, _ = OPS.ring_attention_varlen(q, q, q, many, True, None, name)
    assert mkernel.torch.counters()["fallbacks"] == {f"{NAME}: more than 1024 parts of sequences": 1}
    wanted, _ = OPS.ring_attention_varlen(q[:16], q[:16], q[:16], many[:9], True, None, name)
    assert torch.allclose(out[:16].float(), wanted.float(), atol=0.02)
    explained(name)
    end()


def backward_of(keys, sequences):
    """What explain() says of the backward pass, which is of `sequences` parts that see so many keys."""
    keys = bucket_of(keys, mkernel.torch.Options().buckets)
    operation = f"batch=1 sequence=20 keys={keys} max_sequences={sequences} heads=4 kv_heads=2 head_dim=16 causal bf16 cpu"
    return f"{BACKWARD_KIND} {operation}; in PyTorch where the loss depends on lse"


def explained(name):
    explain = mkernel.torch.explain
    q, k = operand(1, RANK, (20, 4, 16)), operand(1, RANK, (20, 2, 16))
    cu_seqlens = torch.tensor([0, 6, 20], dtype=torch.int32)
    told = explain(OPS.ring_attention_varlen, q, k, k, cu_seqlens, True, None, name)
    operation = f"ring_attention batch=1 sequence={20 * WORLD} max_sequences=2 heads=4 kv_heads=2 head_dim=16 causal bf16 cpu"
    assert (told.path, told.operation, told.planned, told.copies) == ("mkernel", operation, False, ()), (told, operation)
    assert told.backward == backward_of(10 * (2 * WORLD + 1), 4), told
    parts = explain(OPS.ring_attention_varlen, q, k, k, cu_seqlens, True, None, name, zigzag=False)
    assert (parts.path, parts.backward) == ("mkernel", backward_of(20 * (RANK + 1), 2)), parts
    assert parts.operation == backward_of(20 * (RANK + 1), 2).partition(";")[0].replace(BACKWARD_KIND, "attention"), parts
    assert "split zigzag alone" in parts.why and "nothing overlaps" in parts.why and len(parts.copies) == 1, parts
    OPS.ring_attention_varlen(q, k, k, cu_seqlens, True, None, name)
    assert explain(NAME, q, k, k, cu_seqlens, True, None, name).planned
    told = explain(NAME, q.float(), k.float(), k.float(), cu_seqlens, True, None, name)
    assert told.path == "fallback" and "torch.float32" in told.why, told
    assert explain(NAME, q, k, k, cu_seqlens.long(), True, None, name).path == "error"


def compiled():
    """opcheck, torch.compile without a graph break, and wrong input."""
    warnings.simplefilter("ignore")
    name = start()
    cu_seqlens = torch.tensor([0, 6, 8, 8], dtype=torch.int32)
    for needs in (False, True):
        q, k, v = (operand(seed, RANK, (8, heads, 16)).requires_grad_(needs) for seed, heads in ((1, 4), (2, 2), (3, 2)))
        for causal, zigzag in ((True, True), (False, False)):
            arguments = (q, k, v, cu_seqlens, causal, 0.3, name)
            results = torch.library.opcheck(OPS.ring_attention_varlen.default, arguments, {"zigzag": zigzag})
            assert set(results.values()) == {"SUCCESS"} and len(results) == 4, results
    out, lse = OPS.ring_attention_varlen(*arguments)
    saved = (torch.ones_like(out), lse.detach(), *(x.detach() for x in (q, k, v, out, lse)), *arguments[3:])
    results = torch.library.opcheck(OPS.ring_attention_varlen_backward.default, saved)
    assert set(results.values()) == {"SUCCESS"}, results

    def block(x, weight):
        q, k, v = (x @ weight).unflatten(-1, (3, 2, 16)).unbind(1)
        out, lse = OPS.ring_attention_varlen(q, k, v, cu_seqlens, True, None, name)
        return torch.relu(out).flatten(1) @ weight.t()[:32] * (lse * 0 + 1).mean()

    def gradients_of(function):
        leaves = [operand(4, RANK, (8, 24)).requires_grad_(), operand(5, RANK, (24, 96)).requires_grad_()]
        out = function(*leaves)
        (out * operand(7, RANK, out.shape)).sum().backward()
        return [out.detach(), *(leaf.grad for leaf in leaves)]

    wanted = gradients_of(block)
    got = gradients_of(torch.compile(block, backend="aot_eager", fullgraph=True))
    assert all(torch.equal(x, y) for x, y in zip(got, wanted))
    wrong(name)
    end()


def wrong(name):
    q = operand(1, RANK, (6, 4, 16))

    def call(cu_seqlens, *operands, dtype=torch.int32, zigzag=True):
        cu_seqlens = torch.as_tensor(cu_seqlens, dtype=dtype)
        return OPS.ring_attention_varlen(*(operands or (q, q, q)), cu_seqlens, True, None, name, zigzag=zigzag)

    for attempt, words in (
        (lambda: call([0, 3, 6]), ["cu_seqlens[1] = 3", "3 positions", "even"]),
        (lambda: call([0, 4, 2]), ["cu_seqlens[2] = 2", "4..6"]),
        (lambda: call([0, 4, 8]), ["cu_seqlens[2] = 8", "4..6"]),
        (lambda: call([2, 4, 6]), ["cu_seqlens[0] = 2", "0..0"]),
        (lambda: call([[0, 6]]), ["cu_seqlens has shape (1, 2)"]),
        (lambda: call([]), ["cu_seqlens has shape (0,)"]),
        (lambda: call([0, 6], dtype=torch.int64), ["torch.int64", "torch.int32"]),
        (lambda: call([0, 6], q[None], q, q), ["q has 4 dimensions", "[positions, heads, head_dim]"]),
        (lambda: call([0, 4], q, q[:4], q[:4]), ["q has 6 positions and k 4"]),
        (lambda: call([0, 6], q, q.half(), q), ["k has dtype torch.float16"]),
    ):
        with raises(mkernel.InvalidArgument, *words):
            attempt()
    call([0, 3, 6], zigzag=False)
    leaf = q.clone().requires_grad_()
    out, _ = call([0, 6], leaf, q, q)
    with raises(mkernel.Unimplemented, "ring_attention_varlen_backward", "no backward"):
        torch.autograd.grad(out.sum(), leaf, create_graph=True)
    call([0, 6])


def packing():
    """Which rows are packed, and where they lie, of every rank of worlds up to 4: beside a list that is made position by position."""
    for world in range(1, 5):
        for causal, zigzag in ((True, True), (True, False), (False, True)):
            for lengths, behind in (((4, 0, 10, 2), 3), ((6,), 0), ((0, 0, 8), 1)):
                pack(Call(causal, None, 0, zigzag), world, lengths, behind)


def pack(call, world, lengths, behind):
    rows = sum(lengths) + behind
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0).int()
    held = [[(sequence, part) for sequence, length in enumerate(lengths) for part in held_rows(call, length * world, world, rank)]
            for rank in range(world)]
    lies = {}  # the row that holds a position of a sequence, among those of all ranks
    for rank, parts in enumerate(held):
        for sequence, part in parts:
            first = rank * rows + int(cu_seqlens[sequence]) + part.row
            lies.update({(sequence, part.begin + i): first + i for i in range(part.end - part.begin)})
    for rank, parts in enumerate(held):
        wanted, cu_q, cu_k = [], [0], [0]
        for sequence, part in parts:
            wanted += [lies[sequence, position] for position in range(part.end if call.causal else lengths[sequence] * world)]
            cu_q.append(int(cu_seqlens[sequence]) + part.rows.stop)
            cu_k.append(len(wanted))
        made = Packing(cu_seqlens, rows, call, world, rank)
        assert (made.cu_seqlens_q.tolist(), made.cu_seqlens_k.tolist()) == (cu_q, cu_k)
        assert made.gathered_rows()[: len(wanted)].tolist() == wanted and made.sizes.keys >= len(wanted)
        found = sorted((key, row) for of_part in made.packed_keys().tolist() for row, key in enumerate(of_part) if key < made.sizes.keys)
        assert found == list(enumerate(wanted)), (call, world, rank)
