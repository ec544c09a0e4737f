"""Attention by every rank: forward, backward, sequences of different lengths, and over the ranks."""
import numpy as np
from operation_scenarios import UNIT, close, operand, poisoned, rows_of, widen
from rank import LONG, RANK, WORLD, join, raises

import mkernel


def places_of(rank, sequence, causal):
    """The positions of a sequence of all ranks that `rank` holds."""
    if not causal:
        return np.arange(sequence)[rows_of(rank, sequence)]
    return np.concatenate([np.arange(sequence)[rows_of(part, sequence, 2 * WORLD)] for part in (rank, 2 * WORLD - 1 - rank)])


def attention(group, dtype, causal):
    batch, sequence, heads, kv_heads, dim = 2, 61, 4, 2, 32
    scale = dim ** -0.5
    q, k, v = (operand(seed, 0, (batch, sequence, count, dim), dtype) for seed, count in ((7, heads), (8, kv_heads), (9, kv_heads)))
    mine = places_of(RANK, sequence, causal)
    wanted, wanted_lse = np.zeros((batch, len(mine), heads, dim)), np.zeros((batch, heads, len(mine)))
    for head in range(heads):
        keys, values = widen(k)[:, :, head // 2], widen(v)[:, :, head // 2]
        scores = widen(q)[:, mine, head] @ keys.transpose(0, 2, 1) * scale
        if causal:
            scores[:, np.arange(sequence)[None, :] > mine[:, None]] = -np.inf
        weights = np.exp(scores)
        wanted_lse[:, head] = np.log(weights.sum(axis=2))
        wanted[:, :, head] = (weights / weights.sum(axis=2, keepdims=True)) @ values
    sizes = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "head_dim": dim, "causal": causal, "dtype": dtype}
    bound = 1.01 * UNIT[dtype] * np.abs(wanted) + 2e-5
    with group.ring_attention(sequence=sequence, **sizes) as operation:
        assert operation.positions == len(mine)
        out, lse = poisoned(wanted.shape, dtype), np.full((batch, heads, len(mine)), np.nan, np.float32)
        operation.run(*(np.ascontiguousarray(x[:, mine]) for x in (q, k, v)), out, lse=lse, timeout=LONG)
        close(out, wanted, bound)
        assert (np.abs(lse - wanted_lse) <= 1e-5).all()
    if not causal:  # this rank's queries alone see the same
        with group.attention(sequence=6, keys=sequence, **sizes) as operation:
            out = poisoned((batch, 6, heads, dim), dtype)
            operation.run(np.ascontiguousarray(q[:, mine[:6]]), k, v, out, timeout=LONG)
            close(out, wanted[:, :6], bound[:, :6])


def varlen(group, dtype, causal):
    """Every rank has lengths of its own; causal with a window."""
    rows, heads, kv_heads, dim = 40, 4, 2, 32
    queries, keys = ([5, 0, 20], [9, 3, 11]) if RANK % 2 else ([0, 1, 30], [2, 0, 31])
    cu_q, cu_k = (np.cumsum([0, *lengths, 0], dtype=np.int32) for lengths in (queries, keys))
    q, k, v = (operand(seed, RANK, (rows, count, dim), dtype) for seed, count in ((7, heads), (8, kv_heads), (9, kv_heads)))
    wanted, wanted_lse = np.zeros((cu_q[-1], heads, dim)), np.full((heads, cu_q[-1]), -np.inf)
    for begin, end, first, last in zip(cu_q, cu_q[1:], cu_k, cu_k[1:]):
        if begin == end or first == last:
            continue
        own = np.arange(end - begin)[:, None] + (last - first) - (end - begin)
        place = np.arange(last - first)[None, :]
        seen = (place <= own) & (place >= own - 6) if causal else np.ones((end - begin, last - first), bool)
        for head in range(heads):
            scores = widen(q)[begin:end, head] @ widen(k)[first:last, head // 2].T * dim ** -0.5
            weights = np.where(seen, np.exp(scores), 0)
            total = weights.sum(axis=1)
            with np.errstate(divide="ignore"):
                wanted_lse[head, begin:end] = np.log(total)
            wanted[begin:end, head] = weights @ widen(v)[first:last, head // 2] / np.maximum(total, 1e-300)[:, None]
    with group.attention(sequence=rows, heads=heads, kv_heads=kv_heads, head_dim=dim, causal=causal, max_sequences=4,
                         window=(6, -1) if causal else (-1, -1), dtype=dtype) as operation:
        out, lse = poisoned((rows, heads, dim), dtype), np.full((heads, rows), np.nan, np.float32)
        lengths = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k}
        operation.run(q, k, v, out, lse=lse, **lengths, timeout=LONG)
        close(out[:cu_q[-1]], wanted, 1.01 * UNIT[dtype] * np.abs(wanted) + 2e-5)
        lse = lse[:, :cu_q[-1]]
        assert ((lse == wanted_lse) | (np.abs(lse - wanted_lse) <= 1e-5)).all()
        assert (out[cu_q[-1]:].view(np.uint16) == 0xffff).all()
        with raises(mkernel.InvalidArgument, "attention: cu_seqlens_q is needed with max_sequences = 4"):
            operation.bind(q, k, v, out)
        with raises(mkernel.InvalidArgument, "cu_seqlens_k has shape 4", "wanted are shape 5"):
            operation.bind(q, k, v, out, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k[:4])
        if RANK == 1:  # a rank alone is refused, and the group goes on
            bad = cu_q.copy()
            bad[2] = 4
            with raises(mkernel.InvalidArgument, "attention: cu_seqlens_q[2] = 4, but it must be 5..40"):
                operation.run(q, k, v, out, cu_seqlens_q=bad, cu_seqlens_k=cu_k, timeout=LONG)
        operation.run(q, k, v, out, **lengths, timeout=LONG)
        assert operation.status() is None


def packed_ring(group, dtype, causal):
    """Every rank holds its part of each sequence; causal two of it. Rows behind the last sequence are no numbers."""
    rows, heads, kv_heads, dim = 40, 4, 2, 32
    cu_seqlens = np.cumsum([0, 6, 0, 24, 2, 0], dtype=np.int32)
    sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": dim, "causal": causal, "dtype": dtype}
    shapes = [(1, int(cu_seqlens[-1]) * WORLD, count, dim) for count in (heads, kv_heads, kv_heads)]
    whole = [operand(seed, 0, shape, dtype) for seed, shape in enumerate(shapes, 7)]
    mine = [np.zeros((0, *x.shape[2:]), x.dtype) for x in whole]
    wanted, wanted_lse = np.zeros((0, heads, dim)), np.zeros((heads, 0))
    for begin, end in zip(cu_seqlens * WORLD, cu_seqlens[1:] * WORLD):
        if begin == end:
            continue
        one, held = [np.ascontiguousarray(x[:, begin:end]) for x in whole], places_of(RANK, end - begin, causal)
        mine = [np.concatenate((x, y[0, held])) for x, y in zip(mine, one)]
        out, lse = poisoned(one[0].shape, dtype), np.full((1, heads, end - begin), np.nan, np.float32)
        with group.attention(sequence=int(end - begin), **sizes) as operation:
            operation.run(*one, out, lse=lse, timeout=LONG)
        wanted, wanted_lse = np.concatenate((wanted, widen(out)[0, held])), np.concatenate((wanted_lse, lse[0][:, held]), axis=1)
    mine = [np.concatenate((x, poisoned((rows - len(x), *x.shape[1:]), dtype))) for x in mine]
    with group.ring_attention(sequence=rows * WORLD, max_sequences=5, **sizes) as operation:
        assert operation.positions == rows
        out, lse = poisoned((rows, heads, dim), dtype), np.full((heads, rows), np.nan, np.float32)
        operation.run(*mine, out, lse=lse, cu_seqlens_q=cu_seqlens, timeout=LONG)
        end = cu_seqlens[-1]
        close(out[:end], wanted, 2.02 * UNIT[dtype] * np.abs(wanted) + 4e-5)
        assert (np.abs(lse[:, :end] - wanted_lse) <= 2e-5).all() and np.isnan(lse[:, end:]).all()
        assert (out[end:].view(np.uint16) == 0xffff).all()
        with raises(mkernel.InvalidArgument, "ring_attention: cu_seqlens_k must be None"):
            operation.bind(*mine, out, cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens)
        with raises(mkernel.InvalidArgument, "ring_attention: cu_seqlens_q is needed with max_sequences = 5"):
            operation.bind(*mine, out)
        bad = cu_seqlens.copy()
        if RANK == 1:  # it passes on its keys, so the others go on
            bad[2] = 32
            with raises(mkernel.InvalidArgument, "ring_attention: cu_seqlens_q[3] = 30, but it must be 32..40"):
                operation.run(*mine, out, cu_seqlens_q=bad, timeout=LONG)
        else:
            operation.run(*mine, out, cu_seqlens_q=bad, timeout=LONG)
        operation.run(*mine, out, lse=lse, cu_seqlens_q=cu_seqlens, timeout=LONG)
        assert operation.status() is None


def gradients_of(q, k, v, out, d_out, lse, causal, left=-1):
    """d_q, d_k and d_v; by differences they would be too coarse, so they are written out. `left`: of a window, -1 = all."""
    queries, keys, heads, scale = q.shape[1], k.shape[1], q.shape[2], q.shape[3] ** -0.5
    wanted = np.zeros(q.shape), np.zeros(k.shape), np.zeros(k.shape)
    for head in range(heads):
        of_q, of_out, gradient = (widen(x)[:, :, head] for x in (q, out, d_out))
        of_k, of_v = (widen(x)[:, :, head // 2] for x in (k, v))
        weights = np.exp(of_q @ of_k.transpose(0, 2, 1) * scale - lse[:, head, :, None])
        ahead = np.arange(keys)[None, :] - (np.arange(queries)[:, None] + keys - queries)
        weights[:, (causal & (ahead > 0)) | ((left >= 0) & (ahead < -left))] = 0
        d_scores = weights * (gradient @ of_v.transpose(0, 2, 1) - (gradient * of_out).sum(axis=2, keepdims=True)) * scale
        wanted[0][:, :, head] = d_scores @ of_k
        wanted[1][:, :, head // 2] += d_scores.transpose(0, 2, 1) @ of_q
        wanted[2][:, :, head // 2] += weights.transpose(0, 2, 1) @ gradient
    return wanted


def attention_backward(group, dtype, causal):
    """Of each rank alone; causal with a window."""
    batch, queries, keys, heads, kv_heads, dim = 2, 13, 17, 4, 2, 32
    q, d_out = (operand(seed, RANK, (batch, queries, heads, dim), dtype) for seed in (12, 13))
    k, v = (operand(seed, RANK, (batch, keys, kv_heads, dim), dtype) for seed in (14, 15))
    sizes = {"batch": batch, "sequence": queries, "heads": heads, "kv_heads": kv_heads, "head_dim": dim, "causal": causal,
             "window": (3 if causal else -1, -1), "dtype": dtype}
    out, lse = poisoned(q.shape, dtype), np.full((batch, heads, queries), np.nan, np.float32)
    with group.attention(keys=keys, **sizes) as operation:
        operation.run(q, k, v, out, lse=lse, timeout=LONG)
    wanted = gradients_of(q, k, v, out, d_out, lse, causal, sizes["window"][0])
    gradients = [poisoned(x.shape, dtype) for x in wanted]
    with group.attention_backward(keys=keys, **sizes) as operation:
        operation.run(q, k, v, out, d_out, lse, *gradients, timeout=LONG)
    for found, expected in zip(gradients, wanted):
        close(found, expected, 1.01 * UNIT[dtype] * np.abs(expected) + 2e-5)


def varlen_backward(group, dtype, causal):
    """Of packed sequences, two of which have no queries, or no keys: their gradients are zeros; causal with a window."""
    heads, kv_heads, dim, rows = 4, 2, 32, 40
    of_queries, of_keys = (np.array(ends, np.int32) for ends in ([0, 5, 5, 30, 33], [0, 9, 13, 38, 38]))
    q, d_out = (operand(seed, RANK, (rows, heads, dim), dtype) for seed in (20, 21))
    k, v = (operand(seed, RANK, (rows, kv_heads, dim), dtype) for seed in (22, 23))
    sizes = {"sequence": rows, "heads": heads, "kv_heads": kv_heads, "head_dim": dim, "causal": causal, "dtype": dtype, "max_sequences": 4,
             "window": (6 if causal else -1, -1)}
    lengths = {"cu_seqlens_q": of_queries, "cu_seqlens_k": of_keys}
    out, lse = poisoned(q.shape, dtype), np.full((heads, rows), np.nan, np.float32)
    with group.attention(**sizes) as operation:
        operation.run(q, k, v, out, lse=lse, timeout=LONG, **lengths)
    gradients = [poisoned(x.shape, dtype) for x in (q, k, v)]
    with group.attention_backward(**sizes) as operation:
        operation.run(q, k, v, out, d_out, lse, *gradients, timeout=LONG, **lengths)
        with raises(mkernel.InvalidArgument, "attention_backward: cu_seqlens_k is needed with max_sequences = 4"):
            operation.bind(q, k, v, out, d_out, lse, *gradients, cu_seqlens_q=of_queries)
        bad = np.array([0, 5, 4, 30, 33], np.int32)
        with raises(mkernel.InvalidArgument, "attention_backward: cu_seqlens_q[2] = 4, but it must be 5..40"):
            operation.run(q, k, v, out, d_out, lse, *gradients, timeout=LONG, cu_seqlens_q=bad, cu_seqlens_k=of_keys)
        operation.run(q, k, v, out, d_out, lse, *gradients, timeout=LONG, **lengths)
    for sequence in range(4):
        queries, keys = (slice(*ends[sequence:sequence + 2]) for ends in (of_queries, of_keys))
        found = gradients[0][queries], gradients[1][keys], gradients[2][keys]
        if 0 in (found[0].size, found[1].size):
            assert not any(np.any(x) for x in found)
            continue
        operands = (np.ascontiguousarray(x[None]) for x in (q[queries], k[keys], v[keys], out[queries], d_out[queries], lse[:, queries]))
        for gradient, (expected,) in zip(found, gradients_of(*operands, causal, sizes["window"][0])):
            close(gradient, expected, 1.01 * UNIT[dtype] * np.abs(expected) + 2e-5)


def ring_attention_backward(group, dtype, causal):
    """Every rank knows all operands, and so what all ranks have. What each gives of the gradients of keys and values is rounded,
    and so are the sums of nodes."""
    batch, sequence, heads, kv_heads, dim = 2, 21, 4, 2, 32
    q, d_out = (operand(seed, 0, (batch, sequence, heads, dim), dtype) for seed in (16, 17))
    k, v = (operand(seed, 0, (batch, sequence, kv_heads, dim), dtype) for seed in (18, 19))
    sizes = {"batch": batch, "sequence": sequence, "heads": heads, "kv_heads": kv_heads, "head_dim": dim, "causal": causal,
             "dtype": dtype}
    out, lse = poisoned(q.shape, dtype), np.full((batch, heads, sequence), np.nan, np.float32)
    with group.attention(**sizes) as operation:
        operation.run(q, k, v, out, lse=lse, timeout=LONG)
    mine = places_of(RANK, sequence, causal)
    wanted = [x[:, mine] for x in gradients_of(q, k, v, out, d_out, lse, causal)]
    own = [np.ascontiguousarray(x[:, mine]) for x in (q, k, v, out, d_out)] + [np.ascontiguousarray(lse[:, :, mine])]
    gradients = [poisoned(x.shape, dtype) for x in wanted]
    with group.ring_attention_backward(**sizes) as operation:
        assert operation.positions == len(mine)
        operation.run(*own, *gradients, timeout=LONG)
        with raises(mkernel.InvalidArgument, "lse has shape"):
            operation.bind(*own[:5], np.zeros((batch, 1, len(mine)), np.float32), *gradients)
    rounded = [np.zeros_like(x) for x in wanted]  # magnitudes of what ranks give
    for rank in range(WORLD):
        of_rank, held = np.zeros_like(d_out), places_of(rank, sequence, causal)
        of_rank[:, held] = d_out[:, held]
        for total, part in zip(rounded[1:], gradients_of(q, k, v, out, of_rank, lse, causal)[1:]):
            total += np.abs(part[:, mine])
    for found, expected, parts in zip(gradients, wanted, rounded):
        close(found, expected, 1.01 * UNIT[dtype] * (np.abs(expected) + 2 * parts) + 2e-5)


def attentions():
    group = join()
    for dtype in ("bf16", "f16"):
        for causal in (False, True):
            attention(group, dtype, causal)
            varlen(group, dtype, causal)
            packed_ring(group, dtype, causal)
            attention_backward(group, dtype, causal)
            varlen_backward(group, dtype, causal)
            ring_attention_backward(group, dtype, causal)
