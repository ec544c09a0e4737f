"""mkernel.torch on CUDA tensors: several ranks, each on a GPU, or at the same time on parts of one under MPS."""
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "integration"), str(HERE.parent / "gpu")]
from cluster import gpus_or_skip  # noqa: E402
from mps import RanksAtOnce  # noqa: E402
from torch_test import PACKAGE, PATIENCE, TorchTest, main  # noqa: E402

# What the ranks load they load before one of them waits for another; all of PyTorch's kernels would take long.
ENVIRONMENT = {"CUDA_MODULE_LOADING": "LAZY", "TORCH_SYMM_MEM_DISABLE_MULTICAST": 1, "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": 1}


class OnGpus(RanksAtOnce, TorchTest):
    RANKS, FORKS = 4, False
    SCENARIOS = "torch_gpu_scenarios"

    def scenario(self, name, world, nodes=1):
        if nodes == 1:
            self.start_nodes(1)
        else:
            self.start_nodes(nodes, {"transport": {"kind": "emulated", "gpu_memory": True}})
        for line in self.run_job(f"{self.SCENARIOS}.{name}", world, **ENVIRONMENT):
            print(line, end="")


class Calls(OnGpus):
    def test_values_on_one_node(self):
        self.scenario("values", 2)

    def test_values_on_two_nodes(self):
        self.scenario("values", 2, nodes=2)

    def test_short_way(self):
        self.scenario("short_way", 2)

    def test_wrong_input(self):
        self.scenario("wrong", 2)

    def test_buffers(self):
        self.scenario("buffers", 2, nodes=2)

    def test_compiled(self):
        self.scenario("compiled", 2)


class Streams(OnGpus):
    def test_graphs(self):
        self.scenario("graphs", 2)

    def test_graphs_on_two_nodes(self):
        self.scenario("graphs", 2, nodes=2)

    def test_streams(self):
        self.scenario("streams", 4)

    def test_beside_others(self):
        self.scenario("beside_others", 4)

    def test_late_rank(self):
        self.scenario("late_rank", 2)


class Moe(OnGpus):
    SCENARIOS = "torch_gpu_moe_scenarios"

    def test_values_on_one_node(self):
        self.scenario("values", 2)

    def test_values_on_two_nodes(self):
        self.scenario("values", 2, nodes=2)

    def test_graphs(self):
        self.scenario("graphs", 2)

    def test_graphs_on_two_nodes(self):
        self.scenario("graphs", 2, nodes=2)

    def test_launches_that_every_rank_refuses(self):
        self.scenario("refused", 2)

    def test_wrong_input(self):
        self.scenario("wrong", 2)

    def test_compiled(self):
        self.scenario("compiled", 2)

    def test_grouped(self):
        self.scenario("grouped", 2)

    def test_liger(self):
        self.scenario("liger", 4)

    def test_mega_moe(self):
        self.scenario("mega", 2)


class Attention(OnGpus):
    SCENARIOS = "torch_gpu_attention_scenarios"

    def test_values(self):
        self.scenario("values", 2)

    def test_values_of_four(self):
        self.scenario("values", 4)

    def test_ranks_alone(self):
        self.scenario("alone", 2)

    def test_varlen(self):
        self.scenario("varlen", 2)

    def test_fallbacks(self):
        self.scenario("fallbacks", 2)

    def test_two_nodes(self):
        self.scenario("two_nodes", 2, nodes=2)

    def test_graphs(self):
        self.scenario("graphs", 2)

    def test_compiled(self):
        self.scenario("compiled", 2)

    def test_context_parallel(self):
        self.scenario("context_parallel", 2)


class Alone(TorchTest):
    FORKS = False

    def test_what_a_call_costs(self):
        """Without the extension in C++, and with it where there is a compiler, twice in turns."""
        self.start_nodes(1)
        cache = self.folder / "cache"
        builds = self.spawn(sys.executable, "-B", "-m", "mkernel.torch", "build", PYTHONPATH=PACKAGE, XDG_CACHE_HOME=cache)
        built, _, why = self.finish(builds, 4 * PATIENCE)
        if built != 0:
            print(f"The extension cannot be built here: {why}")
        for extension in (0, 1) * 2 if built == 0 else (0,):
            environment = {**ENVIRONMENT, "XDG_CACHE_HOME": cache, "MKERNEL_TORCH_EXTENSION": extension}
            print(*self.run_job("torch_gpu_overhead.overhead", 1, **environment))


if __name__ == "__main__":
    gpus_or_skip()
    main()
