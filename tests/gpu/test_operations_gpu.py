"""The operations of the cuda executor: ranks that are processes, real daemons (one, or two that play two nodes), a GPU for each
rank, or shared where there are fewer: at the same time under MPS, in time slices without it and where ranks are killed. mkbench
verifies every element of every launch. Skipped, with the reason, where there is no GPU."""
import json
import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "integration"), str(HERE)]  # the latter in a bundle, where the tests lie in one folder
from cluster import BIN, PATIENCE, ClusterTest, gpus_or_skip, wait_until  # noqa: E402
from mps import RanksAtOnce  # noqa: E402

MOE = "moe_dispatch_gemm"
RING = "ring_attention"
BACKWARD = "attention_backward"
RING_BACKWARD = "ring_attention_backward"
# No size is a multiple of a tile's, no number of experts one of a world's.
ODD_SIZES = ["--tokens", "300", "--hidden", "328", "--n", "392", "--experts", "11", "--topk", "3"]
ODD_MOE = [*ODD_SIZES, "--intermediate", "264"]
ODD_RING = ["--batch", "2", "--sequence", "3001", "--heads", "6", "--kv-heads", "2"]
SHARED_MOE = [*ODD_MOE, "--shared-intermediate", "136"]
F16_MOE = [*ODD_SIZES, "--intermediate", "0", "--dtype", "f16"]
RINGS = ([*ODD_RING, "--head-dim", "64", "--causal"], [*ODD_RING, "--head-dim", "128", "--dtype", "f16"])
LONG_RING = ["--sequence", "8192", "--heads", "16", "--kv-heads", "4", "--head-dim", "128", "--causal"]
# That a rank opens: one of each operation, and the one that operations take turns with, which neither mixtures of experts nor a rank alone
# need. Backward passes are given the outputs of attention of a rank alone, the second operation.
WORKSPACES = {MOE: 1, BACKWARD: 2, RING_BACKWARD: 3}
ENDLESS = ["--m", "4096", "--n", "1024", "--k", "4096", "--sequence", "4096", "--heads", "8", "--kv-heads", "4", "--head-dim", "128", "--causal",
           "--iterations", "1000000", "--deadline", "10"]
ENDLESS_AT_ONCE = 3  # operations: all processes on a GPU have it in turns, and a rank waits for many turns of the other one


def batches(*ops):
    return [ops[first:first + ENDLESS_AT_ONCE] for first in range(0, len(ops), ENDLESS_AT_ONCE)]


def shapes(*sizes):
    return [word for m, n, k in sizes for word in ("--shape", f"{m}x{n}x{k}")]


class GpuRanksTest(ClusterTest):
    """Ranks on as many GPUs as there are, on the daemons in equal parts."""

    mps = None  # the server of ranks that run at the same time; without it a GPU is shared in time slices

    def rank(self, rank, world, *arguments, group="gpu"):
        daemon = self.daemons[rank * len(self.daemons) // world]
        # mkbench loads its kernels before one of them waits for another rank, so it need not load all at its start.
        return self.bench(rank, world, daemon, *arguments, "--executor", "cuda", group=group, LOCAL_RANK=rank % GPUS,
                          CUDA_MODULE_LOADING="LAZY")

    def ranks(self, world, *arguments, group="gpu"):
        return [self.rank(r, world, *arguments, group=group) for r in range(world)]

    def share(self, world):
        """Ranks that run on a GPU at the same time have to leave each other room."""
        per_gpu = -(-world // GPUS)
        return ["--share", str(per_gpu)] if self.mps and per_gpu > 1 else []

    def verified(self, world, *operations, iterations=5, group="gpu"):
        """Each of `operations`, a list of words, one after the other in one run of the ranks: starting them takes longer than most."""
        first, *others = operations
        then = [word for words in others for word in ("--then", " ".join(words))]
        ranks = self.ranks(world, *first, *then, "--iterations", str(iterations), *self.share(world), group=group)
        outcomes = [self.finish(rank, 4 * PATIENCE) for rank in ranks]
        for rank, (status, out, err) in enumerate(outcomes):
            self.assertEqual(status, 0, f"rank {rank}: {out}{err}")
        rows = sum(max(1, words.count("--shape")) for words in operations)
        self.assertEqual(outcomes[0][1].count(" verified"), rows, outcomes[0][1])
        print(outcomes[0][1])

    def traced(self, world, *operations, iterations=2):
        """The events that --trace has written of each of them."""
        paths = [self.folder / f"timeline-{number}.json" for number in range(len(operations))]
        self.verified(world, *([*words, "--trace", str(path)] for words, path in zip(operations, paths)), iterations=iterations,
                      group="traced")
        return [json.loads(path.read_text())["traceEvents"] for path in paths]

    def wait_for_no_regions(self):
        for node in self.daemons:
            wait_until(lambda n=node: not n.show("regions"), f"{node.name} lets go of every region")

    def verified_after_kills(self):
        """The GPUs and the daemons are usable at once."""
        self.verified(2, ["gemm_ar"], [RING], iterations=2, group="after")

    def start_endless(self, *ops):
        """Two ranks for each of `ops`, in a group of their own, that run until one fails."""
        return {op: self.ranks(2, op, *ENDLESS, group="endless-" + op) for op in ops}

    def kill_of_rank_1(self, started):
        for _, killed in started.values():
            killed.kill()
        for op, (survivor, _) in started.items():
            with self.subTest(op=op):
                status, out, err = self.finish(survivor)
                self.assertEqual(status, 1, out + err)
                self.assertIn("rank 1", err)
        self.wait_for_no_regions()

    def all_refused(self, started, text):
        for op, ranks in started.items():
            with self.subTest(op=op):
                for rank in ranks:
                    status, out, err = self.finish(rank)
                    self.assertEqual(status, 1, out + err)
                    self.assertRegex(err, text)

    def endless_regions(self, node, op):
        return [region for region in node.show("regions") if region["group"] == "endless-" + op]

    def refused(self, *runs):
        """Runs of two ranks that end at once, (arguments, what each rank says), are started together: most of the time is their start."""
        started = [(self.ranks(2, *arguments, group=f"refused-{number}"), texts) for number, (arguments, *texts) in enumerate(runs)]
        for ranks, texts in started:
            for rank in ranks:
                status, out, err = self.finish(rank)
                self.assertEqual(status, 1, out + err)
                for text in texts:
                    self.assertIn(text, err)

    def verified_shapes(self, worlds, moe, rings):
        """`moe`: arguments of runs of that operation; `rings`: operations and arguments."""
        gemms = [[op, *shapes((4096, n, k), odd, (1, 8, 8))] for op, n, k, odd in (
            ("ag_gemm", 1024, 4096, (1000, 384, 520)), ("gemm_rs", 4096, 1024, (1000, 392, 264)), ("gemm_ar", 4096, 1024, (1000, 392, 264)))]
        for world in sorted(worlds):
            with self.subTest(world=world):
                self.verified(world, *gemms, *([MOE, *shape] for shape in moe), *([op, *shape] for op, shape in rings))


class OneNodeGpuTest(RanksAtOnce, GpuRanksTest):
    RANKS = 2

    def setUp(self):
        super().setUp()
        self.node = self.start_nodes(1)[0]

    def test_shapes(self):
        self.verified_shapes({2, GPUS} - {1}, moe=([], SHARED_MOE, [*ODD_MOE, "--column-major"], F16_MOE),
                             rings=[(op, shape) for op in (RING, RING_BACKWARD) for shape in RINGS])

    def test_timeline(self):
        """--trace: what every CTA of every rank did, on one time axis."""
        gemm = ["--m", "2048", "--n", "512", "--k", "1024"]
        cases = [("ag_gemm", {"push", "signal"}, gemm), ("gemm_rs", {"sum"}, gemm), ("gemm_ar", {"sum", "copy"}, gemm),
                 (MOE, {"route", "table", "push", "sum"}, ODD_MOE)]
        traces = self.traced(2, *([op, *shape] for op, _, shape in cases))
        for (op, work, _), events in zip(cases, traces):
            with self.subTest(op=op):
                spans = [e for e in events if e["ph"] == "X"]
                begins = []
                for rank in (0, 1):
                    mine = [e for e in spans if e["pid"] == rank]
                    self.assertLessEqual({"compute", "intra_comm", "load", "product", "store"} | work, {e["name"] for e in mine})
                    begins.append(min(e["ts"] for e in mine))
                    self.assertLess(max(e["ts"] + e["dur"] for e in mine) - begins[-1], 1e6)
                self.assertLess(abs(begins[0] - begins[1]), 1e6)  # microseconds: one launch, not two clocks
                names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
                self.assertEqual({names[e["pid"], e["tid"]].split()[0] for e in spans if e["name"] == "product"}, {"compute"})

    def test_attention_of_every_rank_alone(self):
        """Also packed sequences, one without positions; --trace tells what their CTAs worked at."""
        packed = ["--heads", "6", "--kv-heads", "2", "--head-dim", "128", "--causal", "--cu-seqlens", "0,5,5,700,1900"]
        cases = [["attention", *RINGS[0]], ["attention", *packed], [BACKWARD, *packed], [BACKWARD, *RINGS[0]], [BACKWARD, *RINGS[1]]]
        for case, events in zip(cases, self.traced(2, *cases, iterations=3)):
            with self.subTest(case=case):
                self.assertLessEqual({"compute", "load", "product", "store"}, {e["name"] for e in events if e["ph"] == "X"})

    def test_overrides_of_the_plan(self):
        small = ["--m", "1000", "--n", "392", "--k", "264"]
        few = ["--comm-ctas", "2", "--sms", "4"]
        self.verified(2, ["ag_gemm", *small, "--comm-ctas", "4"], ["gemm_rs", *small, "--sms", "40"],
                      *([op, *small, *few] for op in ("ag_gemm", "gemm_rs", "gemm_ar")),
                      [MOE, *ODD_MOE, "--comm-ctas", "4"], [MOE, *ODD_MOE, *few], iterations=3)

    def test_plans_that_cannot_run_are_refused_by_name(self):
        self.refused(*(([op, *overrides], text) for op in ("ag_gemm", "gemm_rs", "gemm_ar") for overrides, text in (
            (["--comm-ctas", "3"], "comm_ctas = 3, must be even, 0..66"), (["--sms", "-1"], "sms = -1, must be"),
            (["--sms", "20", "--comm-ctas", "12"], "comm_ctas = 12, must be even, 0..10"))))

    def test_what_cannot_run_is_refused_by_name(self):
        self.refused((["ag_gemm", "--k", "9"], "k = 9, must be a multiple of 8"),
                     (["gemm_ar", "--n", "12"], "gemm_ar: n = 12, must be a multiple of 8"),
                     (["ag_gemm", "--device", "99"], "GPU 99"),
                     ([MOE, "--comm-ctas", "3"], "moe: comm_ctas = 3, but it must be even, 0.."),
                     ([MOE, "--sms", "2"], "moe: sms = 2, but it must be at least 4"),
                     ([MOE, "--hidden", "20"], "moe: hidden = 20, but it must be a multiple of 8"))

    def test_plans_that_differ(self):
        ranks = [self.rank(r, 2, "gemm_rs", "--comm-ctas", str(2 + 2 * r)) for r in (0, 1)]
        for rank in ranks:
            status, out, err = self.finish(rank)
            self.assertEqual(status, 1, out + err)
            self.assertIn("comm_ctas=2", err)
            self.assertIn("comm_ctas=4", err)

    def test_executors_that_differ(self):
        ranks = [self.bench(0, 2, self.node, "ag_gemm", group="gpu"), self.rank(1, 2, "ag_gemm")]
        for rank in ranks:
            status, out, err = self.finish(rank)
            self.assertEqual(status, 1, out + err)
            self.assertIn("cuda", err)
            self.assertIn("rank 0", err)
            self.assertIn("rank 1", err)


class OneNodeKillsGpuTest(GpuRanksTest):
    def setUp(self):
        super().setUp()
        self.node = self.start_nodes(1)[0]

    def start_endless(self, *ops):
        started = super().start_endless(*ops)
        for op in ops:
            wait_until(lambda: len(self.endless_regions(self.node, op)) == 2 * WORKSPACES.get(op, 2), f"the workspaces of {op} are there")
        return started

    def test_kill_of_a_rank(self):
        for ops in batches("ag_gemm", "gemm_ar", MOE, RING, BACKWARD, RING_BACKWARD):
            with self.subTest(ops=ops):
                self.kill_of_rank_1(self.start_endless(*ops))
        self.verified_after_kills()

    def test_kill_of_the_daemon(self):
        for ops in batches("ag_gemm", "gemm_ar", MOE, RING, RING_BACKWARD):
            with self.subTest(ops=ops):
                started = self.start_endless(*ops)
                self.node.kill()
                self.all_refused(started, "UNAVAILABLE")
                self.node.start()
        self.verified_after_kills()
        self.wait_for_no_regions()


class SeveralNodes(GpuRanksTest):
    """Two daemons, joined by the emulated fabric, or by TCP."""

    def start(self, kind="emulated", **options):
        return self.start_nodes(2, {"transport": {"kind": kind, "gpu_memory": True}, f"transport.{kind}": options})


class SeveralNodesGpuTest(RanksAtOnce, SeveralNodes):
    RANKS = 2

    def test_timeline(self):
        """--trace over nodes: what was put, and what arrivals and completions were waited for."""
        self.start(bandwidth_gbytes=50, latency_us=5)
        cases = [*([op, "--m", "2048", "--n", "512", "--k", "1024"] for op in ("ag_gemm", "gemm_rs", "gemm_ar")),
                 *([op, *LONG_RING] for op in (RING, RING_BACKWARD))]
        for case, events in zip(cases, self.traced(2, *cases)):
            with self.subTest(op=case[0]):
                names = {e["name"] for e in events if e["ph"] == "X"}
                self.assertTrue({n for n in names if "arrivals" in n}, names)
                self.assertTrue({n for n in names if "completed" in n}, names)

    def test_shapes(self):
        self.start(bandwidth_gbytes=50, latency_us=5)
        # Other shapes of MoE and of rings go over TCP below, and over several nodes of one process in tests/kernels.
        self.verified_shapes({2, GPUS // 2 * 2} - {0}, moe=(SHARED_MOE, F16_MOE), rings=[(RING, RINGS[1]), (RING_BACKWARD, RINGS[1])])
        self.wait_for_no_regions()

    def test_over_tcp(self):
        self.start("tcp")
        gemms = [[op, "--m", "1000", "--n", "384", "--k", "520"] for op in ("ag_gemm", "gemm_ar")]
        self.verified(2, *gemms, [MOE, *ODD_MOE], *([op, *RINGS[0]] for op in (RING, RING_BACKWARD)))


class ManyRanksGpuTest(RanksAtOnce, SeveralNodes):
    """A world of sixteen on one node, as many as reach each other there, and one of eight on two."""

    RANKS = 16

    def check(self, world):
        if GPUS < world and not self.mps:
            self.skipTest(f"{world} ranks share {GPUS} GPUs in time slices: too slow")
        gemms = [[op, *shapes((2048, n, k), (1000, 392, 264))]
                 for op, n, k in (("ag_gemm", 256, 1024), ("gemm_rs", 1024, 256), ("gemm_ar", 1024, 256))]
        self.verified(world, *gemms, [MOE, *ODD_MOE], *([op, *RINGS[0]] for op in (RING, RING_BACKWARD)), iterations=2)

    def test_one_node(self):
        self.start_nodes(1)
        self.check(16)

    def test_two_nodes(self):
        self.start(bandwidth_gbytes=50, latency_us=5)
        self.check(8)


class MkrunGpuTest(SeveralNodes):
    """The cuda executor and the cpu executor on the same files. Ranks share GPUs in time slices: mkrun has no share of one to give."""

    def setUp(self):
        super().setUp()
        try:
            import numpy
        except ImportError:
            self.skipTest("numpy is not there")
        self.np = numpy
        self.random = numpy.random.default_rng(20261126)
        self.start(bandwidth_gbytes=50, latency_us=5)

    def values(self, *shape):
        return [self.random.uniform(-1, 1, shape).astype("float32") for _ in (0, 1)]

    def file(self, flag, executor, rank="{rank}"):
        """What an executor writes with that flag."""
        return self.folder / f"{flag}-{executor}.{rank}.npy"

    def start_ranks(self, executor, op, results, arguments):
        files = [word for flag in results for word in (f"--{flag}", str(self.file(flag, executor)))]
        ranks = []
        for rank in (0, 1):
            device = ["--device", str(rank % GPUS)] if executor == "cuda" else []
            ranks.append(self.spawn(BIN / "mkrun", op, "--group", f"mkrun-{op}-{executor}", "--daemon", self.daemons[rank].socket,
                                    "--world-size", "2", "--rank", str(rank), *device, "--executor", executor, *files, *arguments))
        return ranks

    def compare(self, op, operands, *arguments, results=("out",)):
        """`operands`: of both ranks, by flag."""
        files = []
        for flag, of_ranks in operands.items():
            for rank, array in enumerate(of_ranks):
                self.np.save(self.folder / f"{flag}.{rank}.npy", array)
            files += [f"--{flag}", str(self.folder / (flag + ".{rank}.npy"))]
        for ranks in [self.start_ranks(executor, op, results, [*files, *arguments]) for executor in ("cuda", "cpu")]:
            for rank, process in enumerate(ranks):
                status, out, err = self.finish(process)
                self.assertEqual(status, 0, f"rank {rank}: {out}{err}")
        for flag in results:
            for rank in (0, 1):
                mine, wanted = (self.np.load(self.file(flag, executor, rank)) for executor in ("cuda", "cpu"))
                self.np.testing.assert_allclose(mine, wanted, atol=1e-2, rtol=2e-2)

    def test_ring_attention(self):
        heads = {"q": self.values(2, 300, 4, 64), "k": self.values(2, 300, 2, 64), "v": self.values(2, 300, 2, 64)}
        for causal in ([], ["--causal"]):
            self.compare(RING, heads, *causal, results=("out", "lse"))

    def test_packed_attention(self):
        lengths = self.np.cumsum([0, 5, 0, 300, 7, 129]).astype("int32")
        packed = {"q": self.values(441, 4, 64), "k": self.values(441, 2, 64), "v": self.values(441, 2, 64), "cu-seqlens": [lengths] * 2}
        self.compare("attention", packed, "--causal", results=("out", "lse"))
        # Its backward pass, of what the cpu executor has just given.
        given = {flag: [self.np.load(self.file(flag, "cpu", rank)) for rank in (0, 1)] for flag in ("out", "lse")}
        packed.update({"o": given["out"], "lse": given["lse"], "d-o": self.values(441, 4, 64)})
        self.compare(BACKWARD, packed, "--causal", results=("out", "d-k", "d-v"))

    def test_mixture_of_experts(self):
        experts, inner = 5, 64
        weights = {"w1": [w[2 * r:3 * r + 2] / 8 for r, w in enumerate(self.values(experts, 128, 2 * inner))],
                   "w2": [w[2 * r:3 * r + 2] / 8 for r, w in enumerate(self.values(experts, inner, 136))],
                   "shared-w1": self.values(128, 2 * 40), "shared-w2": self.values(40, 136)}
        routing = {"topk-indices": [self.np.stack([self.random.permutation(experts)[:3] for _ in range(99)]).astype("int32") for _ in (0, 1)],
                   "topk-weights": [w ** 2 for w in self.values(99, 3)]}
        self.compare(MOE, {"a": [x / 4 for x in self.values(99, 128)], **weights, **routing})


class SeveralNodesKillsGpuTest(SeveralNodes):
    OPS = ("ag_gemm", "gemm_rs", "gemm_ar", MOE, RING)

    def start_endless(self, *ops):
        started = super().start_endless(*ops)
        for node in self.daemons:
            for op in ops:
                wait_until(lambda n=node: self.endless_regions(n, op), f"the ranks of {op} run")
        return started

    def test_kill_of_a_rank(self):
        self.start()
        for ops in batches(*self.OPS):
            with self.subTest(ops=ops):
                self.kill_of_rank_1(self.start_endless(*ops))
        self.verified_after_kills()

    def test_kill_of_a_daemon(self):
        self.start()
        for ops in batches(*self.OPS):
            with self.subTest(ops=ops):
                started = self.start_endless(*ops)
                self.daemons[1].kill()
                self.all_refused(started, "UNAVAILABLE|DEADLINE_EXCEEDED")
                self.daemons[1].start()
                for node in self.daemons:
                    self.wait_for_peers(node, 1)
                self.wait_for_no_regions()
        self.verified_after_kills()


if __name__ == "__main__":
    GPUS = gpus_or_skip()
    unittest.main(verbosity=2)
