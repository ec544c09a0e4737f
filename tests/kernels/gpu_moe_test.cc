// The mixture of experts on the cuda executor, with a GPU for every rank or shared: random inputs, poisoned
// outputs, every element against fp64; launches replayed by graphs.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/gpu_moe_ranks.h"
#include "tests/support/require.h"

namespace mkernel::test {
namespace {

using Outputs = std::vector<GpuMoeRanks::Tensor>;

Outputs run_launches(const FabricOptions& fabric, const MoeShape& shape, int launches,
                     const kernels::MoeOptions& options = {}) {
  CAPTURE(fabric.nodes);
  CAPTURE(fabric.ranks_per_node);
  GpuMoeRanks ranks(fabric, shape, options);
  return run_launches(ranks, launches);
}

}  // namespace

TEST_CASE("moe: the cases of both executors") {
  if (!peers_or_skip(1)) return;
  for (const MoeCase& of : moe_cases()) {
    CAPTURE(of.name);
    run_launches({.nodes = of.nodes, .ranks_per_node = of.ranks, .across_nodes = of.across_nodes}, of.shape,
                 3);
  }
}

TEST_CASE("moe: both types and layouts, w1 whole and apart") {
  if (!peers_or_skip(1)) return;
  for (const std::uint32_t world : {1U, 4U}) {
    for (const DataType dtype : {DataType::kBf16, DataType::kF16}) {
      for (const Layout layout : {Layout::kRowMajor, Layout::kColumnMajor}) {
        MoeShape shape = kOddMoe;
        shape.dtype = dtype;
        shape.w_layout = layout;
        GpuMoeRanks ranks({.ranks_per_node = world}, shape);
        const Outputs whole = run_launches(ranks, 2);
        ranks.set_w1_up(true);
        CHECK(run_launches(ranks, 2) == whole);
        ranks.set_w1_up(false);
        CHECK(run_launches(ranks, 1) == Outputs(whole.begin(), whole.begin() + world));
      }
    }
  }
}

TEST_CASE("moe: a shape small enough for tools that watch every access") {
  if (!peers_or_skip(1)) return;
  run_launches({.ranks_per_node = 2}, kTinyMoe, 2);
  MoeShape shared = kTinyMoe;
  shared.shared_intermediate = 24;
  run_launches({.nodes = 2}, shared, 1);
}

TEST_CASE("moe: several blocks of rows, an odd number of columns of tiles, several steps along k") {
  if (!peers_or_skip(1)) return;
  const MoeShape wide{
      .max_tokens = 300, .hidden = 200, .n = 520, .intermediate = 264, .experts = 3, .topk = 2};
  run_launches({.ranks_per_node = 2}, wide, 2);
  MoeShape single = wide;
  single.intermediate = 0;
  run_launches({.ranks_per_node = 1}, single, 2);
}

TEST_CASE("moe: sections of two blocks, rows of other nodes apart or not: the same bits") {
  if (!peers_or_skip(1)) return;
  // Several hundred rows of an expert from every rank.
  const MoeShape shape{
      .max_tokens = 500, .hidden = 200, .n = 520, .intermediate = 136, .experts = 3, .topk = 2};
  for (const FabricOptions& fabric :
       {FabricOptions{.ranks_per_node = 2}, FabricOptions{.nodes = 2, .ranks_per_node = 1},
        FabricOptions{.nodes = 2, .ranks_per_node = 2, .across_nodes = true}}) {
    Outputs first;
    for (const kernels::MoeOptions& options : {kernels::MoeOptions{.apart = false},
                                               {.apart = fabric.nodes > 1},
                                               {.section_blocks = 2, .apart = fabric.nodes > 1}}) {
      GpuMoeRanks ranks(fabric, shape, options);
      const Outputs y = run_launches(ranks, 2);
      if (first.empty()) first = y;
      CHECK(y == first);
    }
  }
}

TEST_CASE("moe: a shared expert, both types and layouts, of one tile and of several, on ranks and nodes") {
  if (!peers_or_skip(1)) return;
  for (const auto& [nodes, ranks] : {std::pair{1U, 1U}, {1U, 4U}, {2U, 2U}}) {
    for (const DataType dtype : {DataType::kBf16, DataType::kF16}) {
      MoeShape shape = kOddMoe;
      shape.dtype = dtype;
      shape.w_layout = dtype == DataType::kBf16 ? Layout::kColumnMajor : Layout::kRowMajor;
      shape.shared_intermediate = dtype == DataType::kBf16 ? 296 : 24;
      GpuMoeRanks world({.nodes = nodes, .ranks_per_node = ranks}, shape);
      const Outputs whole = run_launches(world, 3);
      world.set_w1_up(true);
      CHECK(run_launches(world, 3) == whole);
    }
  }
  // Blocks above each other and alone.
  run_launches({.ranks_per_node = 2},
               {.max_tokens = 300,
                .hidden = 200,
                .n = 520,
                .intermediate = 72,
                .experts = 3,
                .topk = 1,
                .shared_intermediate = 264},
               2);
}

TEST_CASE("moe: a world of eight on multiprocessors that its ranks leave each other") {
  if (!peers_or_skip(1)) return;
  run_launches({.ranks_per_node = 8}, kTinyMoe, 3);
  run_launches({.nodes = 2, .ranks_per_node = 4}, kTinyMoe, 3);
}

TEST_CASE("moe: any skew: all tokens to one expert, one token in the world, none at all") {
  if (!peers_or_skip(1)) return;
  const MoeShape shape{.max_tokens = 150, .hidden = 64, .n = 64, .intermediate = 72, .experts = 8, .topk = 1};
  for (const FabricOptions& fabric :
       {FabricOptions{.ranks_per_node = 4}, FabricOptions{.nodes = 2, .ranks_per_node = 1}}) {
    GpuMoeRanks ranks(fabric, shape);
    for (const std::int32_t expert : {0, 7}) {
      ranks.run_checked(ranks.inputs(
          one_expert(expert), [](std::uint32_t rank) { return 150 - 40 * rank; }, 6));
      for (const std::uint32_t only : {3U, 0U, 9U}) {
        ranks.run_checked(ranks.inputs(
            one_expert(expert), [&](std::uint32_t rank) { return rank == only ? 1 : 0; }, 7));
      }
    }
  }
}

TEST_CASE("moe: the same bits however many CTAs dispatch and sum, and however tokens are cut") {
  if (!peers_or_skip(1)) return;
  for (const FabricOptions& fabric :
       {FabricOptions{.ranks_per_node = 2}, FabricOptions{.nodes = 2, .ranks_per_node = 1}}) {
    const Outputs first = run_launches(fabric, kOddMoe, 2);
    for (const kernels::MoeOptions& options :
         {kernels::MoeOptions{.dispatch_ctas = 2, .pieces = 1},
          kernels::MoeOptions{.dispatch_ctas = 12, .pieces = 7, .summing_ctas = 2},
          kernels::MoeOptions{.dispatch_ctas = 8, .summing_ctas = 8},
          kernels::MoeOptions{.dispatch_ctas = 2, .sms = 4}})
      CHECK(run_launches(fabric, kOddMoe, 2, options) == first);
  }
}

namespace {

/// Everything but y, which is poisoned.
Status copy_inputs(const GpuMoeRanks& ranks, int rank, const MoeOnGpu& to, const MoeOnGpu& from) {
  for (const auto part : {&MoeOnGpu::x, &MoeOnGpu::topk, &MoeOnGpu::weights})
    MK_RETURN_IF_ERROR(copy_on_gpu(to.*part, from.*part, ranks.stream(rank)));
  return bench::poison(to.y, ranks.stream(rank).get());
}

/// A captured launch is replayed for each of so many inputs, with nothing but the stream between them; then
/// all outputs are verified.
void replay(const FabricOptions& fabric, int rounds, std::size_t replays) {
  CAPTURE(fabric.nodes);
  GpuMoeRanks ranks(fabric, kTinyMoe);
  const auto world = static_cast<std::size_t>(ranks.size());
  std::vector<std::optional<bench::GpuGraph>> graphs(world);
  std::vector<std::vector<MoeOnGpu>> log(world);  // by rank, by replay
  require_ok(ranks.each([&](int rank) -> Status {
    const auto at = static_cast<std::size_t>(rank);
    for (std::size_t i = 0; i < replays; ++i) {
      auto made = ranks.allocate();
      if (!made.ok()) return made.status();
      log[at].push_back(std::move(*made));
    }
    auto graph = bench::GpuGraph::capture(
        ranks.stream(rank), [&] { return ranks.enqueue(rank, ranks.operands(rank), kTinyMoe.max_tokens); });
    if (!graph.ok()) return graph.status();
    graphs[at] = std::move(*graph);
    return {};
  }));
  for (int round = 0; round < rounds; ++round) {
    CAPTURE(round);
    std::vector<std::vector<MoeInput>> inputs;  // by replay, by rank
    for (std::size_t i = 0; i < replays; ++i) {
      const std::uint64_t seed = static_cast<std::uint64_t>(round) * replays + i;
      const Router router = i % 2 == 0 ? zipf_router(kTinyMoe, seed) : random_router(kTinyMoe, seed);
      inputs.push_back(ranks.inputs(router, kTinyMoe.max_tokens, seed));
    }
    require_ok(ranks.each([&](int rank) -> Status {
      const auto at = static_cast<std::size_t>(rank);
      for (std::size_t i = 0; i < replays; ++i)
        MK_RETURN_IF_ERROR(ranks.fill(rank, inputs[i][at], log[at][i]));
      MK_RETURN_IF_ERROR(ranks.stream(rank).synchronize());
      for (const MoeOnGpu& logged : log[at]) {
        MK_RETURN_IF_ERROR(copy_inputs(ranks, rank, ranks.operands(rank), logged));
        MK_RETURN_IF_ERROR(graphs[at]->launch(ranks.stream(rank)));
        MK_RETURN_IF_ERROR(copy_on_gpu(logged.y, ranks.operands(rank).y, ranks.stream(rank)));
      }
      MK_RETURN_IF_ERROR(ranks.stream(rank).synchronize());
      return ranks.operation(rank).status();
    }));
    require_ok(ranks.each([&](int rank) -> Status {
      const auto at = static_cast<std::size_t>(rank);
      for (std::size_t i = 0; i < replays; ++i) {
        MK_RETURN_IF_ERROR(ranks.verified(rank, log[at][i], inputs[i][at])
                               .status()
                               .with_context("replay " + std::to_string(i)));
      }
      return {};
    }));
  }
}

}  // namespace

TEST_CASE("moe: captured in a graph and replayed with new tokens and routing, no host call between") {
  if (!peers_or_skip(1)) return;
  replay({.ranks_per_node = static_cast<std::uint32_t>(node_ranks())}, 10, 100);
  replay({.nodes = 2, .ranks_per_node = 1}, 1, 100);
}

}  // namespace mkernel::test
