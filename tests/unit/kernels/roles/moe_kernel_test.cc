// The whole kernel of the mixture of experts on the host: the feed of tasks, clusters whose CTAs lie above
// each other or side by side, gates in the epilogue, rows that are stored where they are summed.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/unit/kernels/roles/moe_ranks.h"

namespace mkernel::test {
namespace {

constexpr Spread kWhole{.dispatch_ctas = 4, .clusters = 2, .whole_kernel = true};

void check_kernel(const MoeShape& shape, const Nodes& nodes, int launches) {
  CAPTURE(nodes.nodes);
  CAPTURE(nodes.ranks);
  CAPTURE(shape.intermediate);
  HostRanks world(shape, nodes, kWhole);
  for (int launch = 0; launch < launches; ++launch) {
    const auto seed = 100 + static_cast<std::uint64_t>(launch);
    world.check(world.inputs(random_router(shape, seed), launch == 0 ? shape.max_tokens : 7, seed));
  }
}

TEST_CASE("moe kernel: one product and two, both types and layouts") {
  for (const std::int64_t intermediate : {0, 136}) {
    for (const Layout layout : {Layout::kRowMajor, Layout::kColumnMajor}) {
      const DataType type = layout == Layout::kRowMajor ? DataType::kBf16 : DataType::kF16;
      check_kernel({.max_tokens = 37,
                    .hidden = 72,
                    .n = 264,
                    .intermediate = intermediate,
                    .experts = 5,
                    .topk = 2,
                    .dtype = type,
                    .w_layout = layout},
                   {}, 2);
    }
  }
}

TEST_CASE("moe kernel: blocks above each other and alone") {
  // 300 rows of an expert: two blocks above each other and one beside itself.
  check_kernel({.max_tokens = 300, .hidden = 200, .n = 72, .intermediate = 72, .experts = 2, .topk = 2}, {},
               1);
}

TEST_CASE("moe kernel: near and far rows apart, in sections of two blocks, and parts of tokens") {
  Spread cut = kWhole;
  cut.section_blocks = 2;
  cut.sum_parts = 2;
  HostRanks world({.max_tokens = 300, .hidden = 72, .n = 264, .intermediate = 8, .experts = 2, .topk = 1},
                  {2, 1}, cut);
  // Two blocks of near rows and one with far rows, or near rows alone.
  const Router one = one_expert(0);
  world.check(world.inputs(one, 300, 1));
  world.check(
      world.inputs([](std::uint32_t rank,
                      std::int64_t) { return std::vector<std::int32_t>{static_cast<std::int32_t>(rank)}; },
                   300, 2));
}

TEST_CASE("moe kernel: ranks of a node and of two, weights after the products and before") {
  MoeShape shape{.max_tokens = 20, .hidden = 72, .n = 72, .intermediate = 8, .experts = 5, .topk = 3};
  for (const bool on_input : {false, true}) {
    shape.weights_on_input = on_input;
    check_kernel(shape, {1, 2}, 2);
    check_kernel(shape, {2, 1}, 2);
  }
}

TEST_CASE("moe kernel: a shared expert, both types and layouts, tails of every size") {
  for (const Layout layout : {Layout::kRowMajor, Layout::kColumnMajor}) {
    const DataType type = layout == Layout::kRowMajor ? DataType::kF16 : DataType::kBf16;
    check_kernel({.max_tokens = 37,
                  .hidden = 72,
                  .n = 264,
                  .intermediate = 40,
                  .experts = 5,
                  .topk = 2,
                  .dtype = type,
                  .w_layout = layout,
                  .shared_intermediate = 136},
                 {}, 3);
  }
  // 300 tokens: two blocks above each other and one beside itself.
  check_kernel({.max_tokens = 300,
                .hidden = 72,
                .n = 72,
                .intermediate = 8,
                .experts = 2,
                .topk = 1,
                .shared_intermediate = 200},
               {}, 1);
}

TEST_CASE("moe kernel: a shared expert on ranks of a node and of two") {
  MoeShape shape{.max_tokens = 20,
                 .hidden = 72,
                 .n = 72,
                 .intermediate = 8,
                 .experts = 5,
                 .topk = 3,
                 .shared_intermediate = 24};
  check_kernel(shape, {1, 2}, 3);
  shape.weights_on_input = true;
  check_kernel(shape, {2, 1}, 2);
}

TEST_CASE("moe kernel: the timeline has every CTA's roles, every warp's work in them, and every tile once") {
  const MoeShape shape{.max_tokens = 20,
                       .hidden = 72,
                       .n = 72,
                       .intermediate = 8,
                       .experts = 5,
                       .topk = 3,
                       .shared_intermediate = 24};
  Spread traced = kWhole;
  traced.traced = true;
  HostRanks world(shape, {2, 1}, traced);
  world.check(world.inputs(random_router(shape, 1), 20, 1));
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const std::vector<TraceEvent> timeline = world.timeline(rank);
    const auto count = [&](const std::string& name, std::int32_t warp = -2) {
      return std::count_if(timeline.begin(), timeline.end(), [&](const TraceEvent& e) {
        return e.name == name && (warp == -2 || e.warp == warp);
      });
    };
    // Four CTAs dispatch, two of them and the four others compute; one warp polls, one sends. Of the six that
    // compute every second one has a warp that sums meanwhile.
    CHECK(count("intra_comm", -1) == 4);
    CHECK(count("compute", -1) == 6);
    for (const char* name : {"route", "stage", "push", "forward"}) CHECK(count(name) == 4 * 12 - 2);
    CHECK(count("table") == 12 - 2);
    CHECK(count("sum") == 2 * 12 - 2 + 6 * 8 + 3);
    // Rank 0 has two of the experts, each with one block; a pair of CTAs computes a tile of each, and one
    // more without rows. Every expert has a tile of both products, the shared one too.
    const std::int64_t tiles = 2 * ((rank == 0 ? 2 : 3) + 1);
    CHECK(count("product", 4) == tiles);
    CHECK(count("store", 1) == tiles);
    CHECK(count("load", 0) == 2 * tiles);
    for (const TraceEvent& e : timeline) {
      CHECK(std::any_of(timeline.begin(), timeline.end(), [&](const TraceEvent& role) {
        return role.warp == -1 && role.track == e.track && role.begin_ns <= e.begin_ns &&
               e.end_ns <= role.end_ns;
      }));
    }
  }
}

TEST_CASE("moe kernel: of two launches at a time one fails and says so, and the next does nothing") {
  // With one expert each launch finds rows where the other one has put them, and nothing lies beyond the
  // pool.
  const MoeShape shape{.max_tokens = 200, .hidden = 72, .n = 72, .intermediate = 72, .experts = 1, .topk = 1};
  HostRanks rank(shape, {}, kWhole);
  const auto inputs = rank.inputs(random_router(shape, 1), 200, 1);
  rank.check(inputs);
  rank.check_two(inputs);
  rank.check_stopped(inputs);
}

}  // namespace
}  // namespace mkernel::test
