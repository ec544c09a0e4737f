"""Contenders in turns: each reads the same new inputs, from memory and not from the cache, and its output is verified afterwards."""
import gc
import statistics
import time

import torch

import layer

DEADLINE = 10.0         # seconds of every single wait of a launch
CACHE_BYTES = 256 << 20  # several times the L2
HEAD_START = 2_000_000  # cycles that the GPU spins while the host queues what is timed


class Wrong(Exception):
    """A result that is not what it must be."""


class Launched:
    """mkernel's operation, bound as `launch` to the tensors of a case, on `executor`. A call gives its result()."""

    roundings = 1.0  # times the tolerance of the case that a result may be off

    def __call__(self):
        if self.executor == "cuda":
            self.launch.enqueue(torch.cuda.current_stream().cuda_stream)
        else:
            self.launch.run()
        return self.result()

    def raise_failure(self):
        failure = self.operation.status()
        if failure is not None:
            raise failure

    def finished(self, results):
        return results

    def close(self):
        self.operation.close()


class Theirs:
    """PyTorch's, which holds nothing and raises at once. finished() makes, outside of the timed span, what is verified of what a call
    returned."""

    roundings = 1.0

    def finished(self, results):
        return results

    def raise_failure(self):
        pass

    def close(self):
        pass


class Ours(Launched):
    """mkernel's operation on the tensors of a case. `name` as the other contenders'; `options`: of the plan."""

    def __init__(self, case, group, executor, name="mkernel", **options):
        shape = case.shape
        self.case, self.executor, self.name = case, executor, name
        if shape.grouped:
            self.operation = group.grouped_gemm(max_rows=shape.rows, k=shape.hidden, n=shape.n, groups=shape.experts, executor=executor,
                                                b_layout="column_major", **options)
            self.launch = self.operation.bind(case.sorted_x, case.ends, case.w1, case.y, deadline=DEADLINE)
            return
        self.operation = group.moe(max_tokens=shape.tokens, hidden=shape.hidden, n=shape.n, intermediate=shape.intermediate,
                                   experts=shape.experts, topk=shape.topk, executor=executor, w_layout="column_major",
                                   **options)
        self.launch = self.operation.bind(case.x, case.topk, case.weights, case.w1, case.w2, case.y, deadline=DEADLINE)

    def __call__(self):
        if not self.case.shape.grouped:
            self.launch.set_addresses(tokens=len(self.case.x))  # not all that there is memory for, in some cases
        return super().__call__()

    def result(self):
        return self.case.y


class Torch(Theirs):
    """A function of a case; with `roundings` = 0 it is a floor, and not verified."""

    def __init__(self, name, call, roundings):
        self.name, self.call, self.roundings = name, call, roundings

    def __call__(self):
        return self.call()


def contenders(case, group, executor):
    """`group` None: PyTorch alone."""
    ours = [] if group is None else [Ours(case, group, executor)]
    return [*ours, *(Torch(*theirs) for theirs in case.contenders())]


class Clock:
    """`how`: "graph" (captured once, and replayed), "events" (called anew), both between CUDA events, or "host" without a GPU."""

    def __init__(self, how, head_start=HEAD_START):
        self.how, self.head_start = how, head_start
        self.beyond_cache = None if how == "host" else torch.ones(CACHE_BYTES // 4, device="cuda")

    def ready(self, call):
        """What is timed in place of `call`, which was called before."""
        if self.how != "graph":
            return call
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            results = call()

        def replay():
            graph.replay()
            return results

        return replay

    def time(self, call):
        """(what `call` returns, milliseconds)."""
        if self.how == "host":
            self.start_line()
            begin = time.perf_counter()
            return call(), 1e3 * (time.perf_counter() - begin)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.beyond_cache.sum()  # read, not written: nothing is left that the timed span would have to write back
        torch.cuda._sleep(self.head_start)
        self.start_line()
        begin.record()
        results = call()
        end.record()
        end.synchronize()
        return results, begin.elapsed_time(end)

    def start_line(self):
        """Just before the timed span; of a rank alone there is nobody to meet."""

    def synchronize(self):
        if self.how != "host":
            torch.cuda.synchronize()


def measure(case, routing, group, executor, clock, iterations):
    """The row of one case. Errors: Wrong, and those of mkernel."""
    taken, worst, reading = {}, {}, []
    running = contenders(case, group, executor)
    try:
        case.renew()
        ready = {}
        for contender in running:
            for _ in range(2):  # loads kernels, and makes memory
                checked(case, contender, contender, clock)
            ready[contender.name] = clock.ready(contender)
        for iteration in range(iterations):
            case.renew()
            reading.append(case.weight_bytes)
            first = iteration % len(running)
            for contender in running[first:] + running[:first]:
                ms, off = checked(case, contender, ready[contender.name], clock)
                taken.setdefault(contender.name, []).append(ms)
                worst[contender.name] = max(worst.get(contender.name, 0.0), off)
        expected = running[0].operation.expected_seconds() if group is not None else None
    finally:
        ready = None  # and with it the graphs
        for contender in running:
            contender.close()
        gc.collect()
    return row_of(case.shape, routing, clock.how, taken, worst, reading, expected)


def checked(case, contender, call, clock):
    """(milliseconds, the largest error over its tolerance)."""
    case.y.fill_(float("nan"))
    clock.synchronize()
    results, ms = clock.time(call)
    clock.synchronize()
    contender.raise_failure()
    if not contender.roundings:
        return ms, 0.0
    off = case.wrong(contender.finished(results)) / contender.roundings
    if not off <= 1:
        raise Wrong(f"{contender.name}: an element is off by {off:.3g} times what it may be")
    return ms, off


def row_of(shape, routing, how, taken, worst, reading, expected):
    op = "grouped_gemm" if shape.grouped else "moe_layer" if shape.intermediate else "moe_dispatch_gemm"
    row = {"op": op, "name": shape.name, "model": shape.model, "routing": routing,
           "rows": shape.rows, "tokens": shape.tokens, "hidden": shape.hidden, "intermediate": shape.intermediate, "n": shape.n,
           "experts": shape.experts, "topk": shape.topk, "dtype": "bf16", "w_layout": "column_major", "how": how, "world": 1, "nodes": 1,
           "share": None, "iterations": len(reading)}
    for name, prefix in (("mkernel", ""), ("torch", "torch_"), ("products", "products_")):
        times = taken.get(name)
        if times:
            row |= {f"{prefix}ms": statistics.median(times), f"{prefix}min_ms": min(times), f"{prefix}max_ms": max(times),
                    f"{prefix}tflops": shape.flops() / statistics.median(times) / 1e9}
    row |= {f"worst_of_tolerance_{name}": worst[name] for name in ("mkernel", "torch") if name in worst}
    ours = taken.get("mkernel")
    if not ours:
        return row
    row["verified"] = True  # measure() raises otherwise
    row["expected_ms"] = None if expected is None else 1e3 * expected
    row |= {f"speedup_over_{name}": row[f"{name}_ms"] / row["ms"] for name in ("torch", "products") if name in taken}
    row["weights_gbytes"] = statistics.median(reading) / 1e9  # of the experts that have rows
    row["weights_gbytes_per_s"] = statistics.median(size / ms / 1e6 for size, ms in zip(reading, ours))
    bars = [shape.bar_ms(size, torch_ms) for size, torch_ms in zip(reading, taken["torch"])]
    known = bars[0] is not None
    row |= {"bar_tflops": shape.bar_tflops, "bar_of_reading": shape.bar_reading, "bar_over_torch": shape.bar_over_torch, "bar_ms": statistics.median(bars) if known else None,
            "of_bar": statistics.median(bar / ms for bar, ms in zip(bars, ours)) if known else None}
    return row


def line(row):
    """A row as a line of the table."""
    times = ", ".join(f"{name} {row[prefix + 'ms']:.4f} ({row[prefix + 'min_ms']:.4f} to {row[prefix + 'max_ms']:.4f}, "
                      f"{row[prefix + 'tflops']:.0f} TFLOP/s)"
                      for name, prefix in (("ours", ""), ("torch", "torch_"), ("its products", "products_")) if prefix + "ms" in row)
    verdict = ""
    if "ms" in row:
        verdict = f"{row['speedup_over_torch']:.2f} x torch"
        if row["of_bar"] is not None:
            verdict += f", {row['of_bar']:.2f} of the bar"
        if row["bar_of_reading"]:
            verdict += f", {row['weights_gbytes_per_s']:.0f} GB/s of weights"
    return f"{row['name']:15} {row['routing']:11} | {verdict:45} | ms: {times}"
