"""What several ranks measure: the cases, each a row of the results, and the bars that they are held to."""
import dataclasses
from typing import Optional

RANDOM, ZIPF, ONE_EXPERT, IDLE_RANK = "random", "zipf 1.2", "one expert", "idle rank"


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer, or with `intermediate` = 0 dispatch+GEMM with `n` columns. The floor is the operation of a rank alone whose tokens have
    `floor_topk` experts, or with `floor_topk` = 0 the grouped GEMM of rows that are sorted already. `even_shares`: how many times an
    even share of the rows a rank has memory for."""

    name: str
    model: str
    tokens: int  # of a rank
    hidden: int
    intermediate: int
    n: int
    experts: int
    topk: int
    routing: str = RANDOM
    nodes: int = 1
    floor_topk: int = 8
    even_shares: int = 2
    chain: bool = True  # whether PyTorch's is measured, where the ranks have NCCL
    bar_tflops: Optional[float] = None       # of a GPU
    bar_over_chain: Optional[float] = None   # times as fast
    bar_times_floor: Optional[float] = None  # times as long as the longer of floor and wire,
    bar_more_us: float = 0.0                 # which may take so much longer

    def bar_ms(self, flops, floor_ms, wire_ms, chain_ms):
        """Milliseconds that reach all bars, when a GPU has so many FLOPs to do; None: there is no bar. `chain_ms` None: PyTorch was
        not measured."""
        bars = []
        if self.bar_tflops:
            bars.append(flops / self.bar_tflops / 1e9)
        if self.bar_over_chain and chain_ms is not None:
            bars.append(chain_ms / self.bar_over_chain)
        if self.bar_times_floor:
            bars.append(self.bar_times_floor * (max(floor_ms, wire_ms) + self.bar_more_us / 1e3))
        return min(bars, default=None)


DEEPSEEK = {"model": "DeepSeek-V3 sizes", "hidden": 7168, "intermediate": 2048, "n": 7168, "experts": 256, "topk": 8}
QWEN3 = {"model": "Qwen3-30B-A3B", "hidden": 2048, "intermediate": 768, "n": 2048, "experts": 128, "topk": 8}
# Of two experts of a rank, tokens with two of them each would have as many rows of one as of the other.
MIXTRAL = {"model": "Mixtral-8x7B", "hidden": 4096, "intermediate": 14336, "n": 4096, "experts": 8, "topk": 2, "floor_topk": 1}


def first_product(layer):
    """Gates and ups alone."""
    return layer | {"intermediate": 0, "n": 2 * layer["intermediate"]}


def of_shares(ranks):
    """Of ranks that share a GPU, with an R-th of the tokens each that a rank would have there; R = 1: of those with a GPU each."""
    layer = DEEPSEEK | {"model": "DeepSeek-V3 sizes, 64 experts", "experts": 64}
    cases = []
    for nodes in (1, 2):
        for kind, shape, tokens, times_floor in (("layer", layer, 8192, 1 / 0.90), ("dispatch", first_product(layer), 32768, 1 / 0.88)):
            name = f"{kind}-{tokens // ranks}" + ("-2nodes" if nodes == 2 else "")
            for routing in (RANDOM, ZIPF):
                # With a popular expert the floor's top-k has to be smaller: no expert may have more rows than there are tokens.
                cases.append(Case(name, tokens=tokens // ranks, **shape, routing=routing, nodes=nodes,
                                  floor_topk=8 if routing == RANDOM else 2,
                                  bar_times_floor=1.15 if nodes == 2 or routing == ZIPF else times_floor))
    return cases


def of_gpus(world):
    """Of ranks with a GPU each. Dispatch+GEMM has its tokens spread over the ranks."""
    dispatch = first_product(DEEPSEEK)
    cases = [Case(f"dispatch-{tokens // world}", tokens=tokens // world, **dispatch, floor_topk=0, bar_over_chain=2.2,
                  bar_times_floor=1 / 0.88 if tokens == 32768 else None) for tokens in (2048, 8192, 32768)]
    cases += [
        Case("layer-8192", tokens=8192, **DEEPSEEK, bar_tflops=600, bar_over_chain=1.4),
        Case("qwen3-8192", tokens=8192, **QWEN3, bar_tflops=380),
        Case("qwen3-1024", tokens=1024, **QWEN3, bar_over_chain=1.0),
        Case("mixtral-8192", tokens=8192, **MIXTRAL, bar_tflops=600),
        Case("mixtral-1024", tokens=1024, **MIXTRAL, bar_over_chain=1.0),
        Case("decode-64", tokens=64, **DEEPSEEK, bar_times_floor=1.2, bar_more_us=15),
        Case("layer-8192", tokens=8192, **DEEPSEEK, routing=ZIPF, floor_topk=2),
        Case("layer-8192", tokens=8192, **DEEPSEEK, routing=IDLE_RANK),
        Case("top1-8192", tokens=8192, **DEEPSEEK | {"topk": 1}, routing=ONE_EXPERT, floor_topk=1, even_shares=world),
        Case("layer-8192-2nodes", tokens=8192, **DEEPSEEK, nodes=2, chain=False, bar_times_floor=1.15),
    ]
    # What ranks that share a GPU measure scaled: calibrate.py compares the two.
    cases += [dataclasses.replace(case, name=case.name + "-64experts", chain=False) for case in of_shares(1) if case.routing == RANDOM]
    return cases
