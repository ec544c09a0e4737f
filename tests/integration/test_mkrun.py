"""mkrun on files written by numpy, checked against numpy: one rank of one operation on the user's own matrices."""
import unittest

import numpy as np

from cluster import BIN, ClusterTest

WORLD = 4


def split(total, parts):
    """Rows of every rank, as mkernel::block_range."""
    return [(total * i // parts, total * (i + 1) // parts) for i in range(parts)]


def causal_attention(q, k, v, left=-1):
    """Of one sequence; the last query sees all keys, or `left` before its own. Outputs, and log-sum-exps by head."""
    wide = lambda t: np.repeat(t.astype(np.float64), q.shape[1] // k.shape[1], axis=1)
    scores = np.einsum("qhd,khd->hqk", q.astype(np.float64), wide(k)) / np.sqrt(q.shape[2])
    own = k.shape[0] - q.shape[0]
    seen = np.tril(np.ones(scores.shape[1:], bool), own)
    if left >= 0:
        seen = np.triu(seen, own - left)
    weights = np.where(seen, np.exp(scores), 0)
    sums = weights.sum(-1)
    with np.errstate(divide="ignore"):
        return np.einsum("hqk,khd->qhd", weights / np.where(sums == 0, 1, sums)[..., None], wide(v)), np.log(sums)


def causal_gradients(q, k, v, o, d_o, lse, left=-1):
    """d_q, d_k and d_v of batch entries with as many keys as queries; a query sees all keys before its own, or `left`."""
    group = q.shape[2] // k.shape[2]
    q, o, d_o = (t.astype(np.float64) for t in (q, o, d_o))
    k, v = (np.repeat(t.astype(np.float64), group, axis=2) for t in (k, v))
    scale = q.shape[3] ** -0.5
    weights = np.tril(np.exp(np.einsum("bqhd,bkhd->bhqk", q, k) * scale - lse[..., None]))
    if left >= 0:
        weights = np.triu(weights, -left)
    delta = np.einsum("bqhd,bqhd->bhq", o, d_o)
    d_scores = weights * (np.einsum("bqhd,bkhd->bhqk", d_o, v) - delta[..., None]) * scale
    of_group = lambda t: t.reshape(*t.shape[:2], -1, group, t.shape[3]).sum(3)
    return (np.einsum("bhqk,bkhd->bqhd", d_scores, k), of_group(np.einsum("bhqk,bqhd->bkhd", d_scores, q)),
            of_group(np.einsum("bhqk,bqhd->bkhd", weights, d_o)))


class Mkrun(ClusterTest):
    def setUp(self):
        super().setUp()
        self.random = np.random.default_rng(20261121)

    def values(self, *shape):
        return self.random.uniform(-1, 1, shape).astype(np.float32)

    def save(self, name, arrays, dtype=np.float32):
        for rank, array in enumerate(arrays):
            np.save(self.folder / f"{name}.{rank}.npy", array.astype(dtype))
        return str(self.folder / (name + ".{rank}.npy"))

    def run_ranks(self, op, *arguments, environment=None):
        out = str(self.folder / "out.{rank}.npy")
        ranks = []
        for rank in range(WORLD):
            daemon = self.daemons[rank // 2]
            names = environment(rank) if environment else {"RANK": rank, "WORLD_SIZE": WORLD, "LOCAL_RANK": rank % 2}
            ranks.append(self.spawn(BIN / "mkrun", op, "--group", op, "--daemon", daemon.socket, "--out", out,
                                    *arguments, **names))
        for rank, process in enumerate(ranks):
            status, text, err = self.finish(process, 240)
            self.assertEqual(status, 0, f"rank {rank}: {text}{err}")
        return [np.load(self.folder / f"out.{rank}.npy") for rank in range(WORLD)]

    def close(self, out, wanted, tolerance):
        self.assertEqual(out.shape, wanted.shape)
        self.assertEqual(out.dtype, np.float32)
        scale = np.sqrt(np.mean(wanted ** 2))
        np.testing.assert_allclose(out / scale, wanted / scale, atol=tolerance, rtol=tolerance)

    def test_ag_gemm_f16_files(self):
        self.start_nodes(2)
        m, n, k = 203, 50, 77
        a, b = self.values(m, k).astype(np.float16), [self.values(k, n).astype(np.float16) for _ in range(WORLD)]
        outs = self.run_ranks("ag_gemm", "--dtype", "f16",
                              "--a", self.save("a", [a[i:j] for i, j in split(m, WORLD)], np.float16),
                              "--b", self.save("b", b, np.float16))
        for rank, out in enumerate(outs):
            self.close(out, a.astype(np.float64) @ b[rank].astype(np.float64), 2e-3)

    def test_gemm_rs_and_ar_bf16(self):
        self.start_nodes(2)
        m, n, k = 101, 64, 60
        a, b = [self.values(m, k) for _ in range(WORLD)], [self.values(k, n) for _ in range(WORLD)]
        files = ["--dtype", "bf16", "--a", self.save("a", a), "--b", self.save("b", b)]
        wanted = sum(x.astype(np.float64) @ y for x, y in zip(a, b))
        for rank, (out, (i, j)) in enumerate(zip(self.run_ranks("gemm_rs", *files), split(m, WORLD))):
            self.close(out, wanted[i:j], 4e-2)
        # As mpirun names its ranks, then as srun does.
        for names in (lambda r: {"OMPI_COMM_WORLD_RANK": r, "OMPI_COMM_WORLD_SIZE": WORLD},
                      lambda r: {"SLURM_PROCID": r, "SLURM_NTASKS": WORLD}):
            for out in self.run_ranks("gemm_ar", *files, environment=names):
                self.close(out, wanted, 4e-2)

    def test_the_same_bits_with_every_transport(self):
        m, n, k = 150, 70, 90
        files = ["--dtype", "bf16", "--a", self.save("a", [self.values(m, k) for _ in range(WORLD)]),
                 "--b", self.save("b", [self.values(k, n) for _ in range(WORLD)])]
        results = []
        for settings in ({}, {"transport": {"kind": "emulated"}},
                         {"transport": {"kind": "emulated"}, "transport.emulated": {"drop": 0.05, "reorder": 0.3}}):
            self.start_nodes(2, settings)
            results.append([out.tobytes() for out in self.run_ranks("gemm_ar", *files)])
            for daemon in self.daemons:
                daemon.stop()
            self.daemons = []
        self.assertEqual(results[0], results[1])
        self.assertEqual(results[0], results[2])

    def test_ring_attention(self):
        self.start_nodes(2)
        self.check_ring_attention(dim=32)

    def check_ring_attention(self, *arguments, dim):
        batch, sequence, heads, kv_heads = 2, 61, 4, 2
        q = self.values(batch, sequence, heads, dim)
        k, v = self.values(batch, sequence, kv_heads, dim), self.values(batch, sequence, kv_heads, dim)
        parts = split(sequence, 2 * WORLD)
        held = [np.r_[slice(*parts[r]), slice(*parts[2 * WORLD - 1 - r])] for r in range(WORLD)]
        lse = str(self.folder / "lse.{rank}.npy")
        outs = self.run_ranks("ring_attention", "--dtype", "f16", "--causal", "--sequence", str(sequence), "--lse", lse, *arguments,
                              *[x for name, t in (("q", q), ("k", k), ("v", v))
                                for x in ("--" + name, self.save(name, [t[:, h] for h in held]))])
        wide = lambda t: np.repeat(t.astype(np.float64), heads // kv_heads, axis=2)
        scores = np.einsum("bqhd,bkhd->bhqk", q.astype(np.float64), wide(k)) / np.sqrt(dim)
        scores = np.where(np.tril(np.ones((sequence, sequence), bool)), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        wanted = np.einsum("bhqk,bkhd->bqhd", weights / weights.sum(-1, keepdims=True), wide(v))
        sums = np.log(weights.sum(-1)) + scores.max(-1)
        for rank, (out, h) in enumerate(zip(outs, held)):
            self.close(out, wanted[:, h], 5e-3)
            self.close(np.load(lse.format(rank=rank)), sums[:, :, h], 5e-3)

    def test_packed_ring_attention(self):
        """Sequences without rows, and rows behind the last one, which stay zeros."""
        self.start_nodes(2)
        heads, kv_heads, dim = 4, 2, 32
        ends, rows = np.cumsum([0, 4, 0, 30, 2]), 40  # of every rank
        q, k, v = (self.values(ends[-1] * WORLD, count, dim) for count in (heads, kv_heads, kv_heads))
        held = [[] for _ in range(WORLD)]
        wanted, sums = np.zeros(q.shape), np.zeros((heads, len(q)))
        for begin, end in zip(ends * WORLD, ends[1:] * WORLD):
            wanted[begin:end], sums[:, begin:end] = causal_attention(q[begin:end], k[begin:end], v[begin:end])
            parts = split(end - begin, 2 * WORLD)
            for rank in range(WORLD):
                held[rank] += [begin + i for part in (rank, 2 * WORLD - 1 - rank) for i in range(*parts[part])]
        behind = lambda x: np.concatenate((x, np.full((rows - len(x), *x.shape[1:]), np.nan, x.dtype)))
        lse = str(self.folder / "lse.{rank}.npy")
        outs = self.run_ranks("ring_attention", "--dtype", "f16", "--causal", "--lse", lse,
                              "--cu-seqlens", self.save("cu", [ends] * WORLD, np.int32),
                              *[x for name, t in (("q", q), ("k", k), ("v", v))
                                for x in ("--" + name, self.save(name, [behind(t[h]) for h in held]))])
        for rank, (out, h) in enumerate(zip(outs, held)):
            self.close(out[:len(h)], wanted[h], 5e-3)
            self.assertFalse(out[len(h):].any())
            self.close(np.load(lse.format(rank=rank))[:, :len(h)], sums[:, h], 5e-3)

    def test_backward_passes(self):
        """Of ring attention, and of each rank alone, which has what all ranks have."""
        self.start_nodes(2)
        batch, sequence, heads, kv_heads, dim = 2, 21, 4, 2, 32
        q, d_o = (self.values(batch, sequence, heads, dim).astype(np.float16) for _ in range(2))
        k, v = (self.values(batch, sequence, kv_heads, dim).astype(np.float16) for _ in range(2))
        o, lse = np.zeros(q.shape, np.float16), np.zeros((batch, heads, sequence), np.float32)
        for b in range(batch):
            o[b], lse[b] = causal_attention(q[b], k[b], v[b])
        wanted = causal_gradients(q, k, v, o, d_o, lse)
        parts = split(sequence, 2 * WORLD)
        held = [np.r_[slice(*parts[r]), slice(*parts[2 * WORLD - 1 - r])] for r in range(WORLD)]
        for op, rows in (("ring_attention_backward", held), ("attention_backward", [np.arange(sequence)] * WORLD)):
            gradients = [str(self.folder / (name + ".{rank}.npy")) for name in ("dk", "dv")]
            files = [x for name, t in (("q", q), ("k", k), ("v", v), ("o", o), ("d-o", d_o))
                     for x in ("--" + name, self.save(name, [t[:, h] for h in rows], np.float16))]
            outs = self.run_ranks(op, "--dtype", "f16", "--causal", *files, "--lse", self.save("lse", [lse[:, :, h] for h in rows]),
                                  "--d-k", gradients[0], "--d-v", gradients[1])
            for rank, h in enumerate(rows):
                found = outs[rank], *(np.load(path.format(rank=rank)) for path in gradients)
                for gradient, expected in zip(found, wanted):
                    self.close(gradient, expected[:, h], 5e-3)

    def test_packed_attention_of_every_rank(self):
        """Sequences without queries, without keys, and with more queries than keys among others."""
        self.check_packed_attention()

    def test_packed_attention_with_a_window(self):
        self.check_packed_attention(left=6)

    def check_packed_attention(self, left=-1):
        self.start_nodes(2)
        heads, kv_heads, dim = 4, 2, 32
        of_queries, of_keys = np.cumsum([0, 5, 0, 30, 7, 12]), np.cumsum([0, 9, 4, 30, 0, 3])
        q = [self.values(of_queries[-1], heads, dim) for _ in range(WORLD)]
        k, v = ([self.values(of_keys[-1], kv_heads, dim) for _ in range(WORLD)] for _ in range(2))
        lse = str(self.folder / "lse.{rank}.npy")
        outs = self.run_ranks("attention", "--dtype", "f16", "--causal", "--lse", lse, "--q", self.save("q", q), "--k", self.save("k", k),
                              "--v", self.save("v", v), "--cu-seqlens", self.save("cu", [of_queries] * WORLD, np.int32),
                              "--cu-seqlens-k", self.save("cuk", [of_keys] * WORLD, np.int64), f"--window-left={left}")
        for rank, out in enumerate(outs):
            wanted, sums = np.zeros_like(out), np.full((heads, len(out)), -np.inf)
            for i in range(5):
                queries, keys = slice(*of_queries[i:i + 2]), slice(*of_keys[i:i + 2])
                wanted[queries], sums[:, queries] = causal_attention(q[rank][queries], k[rank][keys], v[rank][keys], left)
            self.close(out, wanted, 5e-3)
            np.testing.assert_allclose(np.load(lse.format(rank=rank)), sums, atol=5e-3, rtol=5e-3)

    def test_packed_backward_pass_of_every_rank(self):
        self.check_packed_backward()

    def test_packed_backward_pass_with_a_window(self):
        self.check_packed_backward(left=6)

    def check_packed_backward(self, left=-1):
        self.start_nodes(2)
        heads, kv_heads, dim = 4, 2, 32
        ends = np.cumsum([0, 5, 0, 30, 7])
        q, d_o = (self.values(ends[-1], heads, dim).astype(np.float16) for _ in range(2))
        k, v = (self.values(ends[-1], kv_heads, dim).astype(np.float16) for _ in range(2))
        o, lse = np.zeros(q.shape, np.float16), np.zeros((heads, len(q)), np.float32)
        wanted = [np.zeros(t.shape) for t in (q, k, v)]
        for rows in (slice(*ends[i:i + 2]) for i in range(len(ends) - 1) if ends[i] < ends[i + 1]):
            o[rows], lse[:, rows] = causal_attention(q[rows], k[rows], v[rows], left)
            found = causal_gradients(*(t[None, rows] for t in (q, k, v, o, d_o)), lse[None, :, rows], left)
            for gradient, of_sequence in zip(wanted, found):
                gradient[rows] = of_sequence[0]
        gradients = [str(self.folder / (name + ".{rank}.npy")) for name in ("dk", "dv")]
        files = [x for name, t in (("q", q), ("k", k), ("v", v), ("o", o), ("d-o", d_o))
                 for x in ("--" + name, self.save(name, [t] * WORLD, np.float16))]
        outs = self.run_ranks("attention_backward", "--dtype", "f16", "--causal", *files, "--lse", self.save("lse", [lse] * WORLD),
                              "--cu-seqlens", self.save("cu", [ends] * WORLD, np.int32), "--d-k", gradients[0], "--d-v", gradients[1],
                              f"--window-left={left}")
        for rank, out in enumerate(outs):
            for gradient, expected in zip((out, *(np.load(path.format(rank=rank)) for path in gradients)), wanted):
                self.close(gradient, expected, 5e-3)

    def test_what_other_operations_do_not_have(self):
        self.start_nodes(1)
        for flags, text in ((["--lse", "x.npy"], "--lse: only attention"),
                            (["--cu-seqlens", "x.npy"], "--cu-seqlens: only attention, attention_backward or ring_attention"),
                            (["--cu-seqlens-k", "x.npy"], "--cu-seqlens-k: only attention or attention_backward"),
                            (["--window-left", "3"], "--window-left: only attention or attention_backward has it, not gemm_ar"),
                            (["--d-o", "x.npy"], "--d-o: only a backward pass has it, not gemm_ar"),
                            (["--device", "0"], "--device is of --executor cuda")):
            process = self.spawn(BIN / "mkrun", "gemm_ar", "--group", "bad", "--world-size", "1", "--rank", "0", "--daemon",
                                 self.daemons[0].socket, "--out", self.folder / "out.npy", *flags)
            status, _, err = self.finish(process)
            self.assertEqual(status, 2, err)
            self.assertIn(text, err)

    def test_moe(self):
        self.start_nodes(2)
        tokens, hidden, inner, n, experts, topk = 19, 32, 24, 40, 6, 2
        x = [self.values(tokens, hidden) for _ in range(WORLD)]
        w1, w2 = self.values(experts, hidden, 2 * inner) / 4, self.values(experts, inner, n) / 4
        indices = [np.stack([self.random.permutation(experts)[:topk] for _ in range(tokens)]) for _ in range(WORLD)]
        weights = [self.values(tokens, topk) ** 2 for _ in range(WORLD)]
        owned = split(experts, WORLD)
        shared1, shared2 = self.values(hidden, 2 * 8) / 4, self.values(8, n) / 4
        outs = self.run_ranks("moe_dispatch_gemm", "--dtype", "f16", "--experts", str(experts),
                              "--shared-w1", self.save("s1", [shared1] * WORLD), "--shared-w2", self.save("s2", [shared2] * WORLD),
                              "--a", self.save("x", x), "--w1", self.save("w1", [w1[i:j] for i, j in owned]),
                              "--w2", self.save("w2", [w2[i:j] for i, j in owned]),
                              "--topk-indices", self.save("i", indices, np.int32),
                              "--topk-weights", self.save("w", weights))
        for rank, out in enumerate(outs):
            gate, up = np.split(x[rank].astype(np.float64) @ shared1, 2, 1)
            wanted = (gate / (1 + np.exp(-gate)) * up) @ shared2
            for t in range(tokens):
                for expert, weight in zip(indices[rank][t], weights[rank][t]):
                    first = x[rank][t].astype(np.float64) @ w1[expert]
                    gate, up = first[:inner], first[inner:]
                    wanted[t] += weight * ((gate / (1 + np.exp(-gate)) * up) @ w2[expert])
            self.close(out, wanted, 1e-2)

    def test_mistakes_name_flag_file_and_shape(self):
        self.start_nodes(1)
        a = self.folder / "a.npy"
        np.save(a, self.values(4, 5))
        b = self.folder / "b.npy"
        np.save(b, self.values(6, 7))
        broken = self.folder / "broken.npy"
        broken.write_bytes(b"\x93NUMPY\x01\x00")
        text = self.folder / "int.npy"
        np.save(text, np.zeros((4, 5), np.complex64))
        cases = [((a, b), ["b.npy", "5", "6"]), ((self.folder / "none.npy", b), ["none.npy"]), ((broken, b), ["broken.npy"]),
                 ((text, b), ["int.npy"])]
        for (left, right), expected in cases:
            with self.subTest(left=left.name):
                process = self.spawn(BIN / "mkrun", "ag_gemm", "--group", "bad", "--world-size", "1", "--rank", "0", "--daemon",
                                     self.daemons[0].socket, "--a", left, "--b", right, "--out", self.folder / "out.npy")
                status, _, err = self.finish(process)
                self.assertNotEqual(status, 0)
                for word in expected:
                    self.assertIn(word, err)


if __name__ == "__main__":
    unittest.main()
