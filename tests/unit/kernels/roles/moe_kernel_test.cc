// The whole kernel of the mixture of experts on the host: the feed of tasks, clusters whose CTAs lie above
// each other or side by side, gates in the epilogue, rows that are stored where they are summed.
#include <cstdint>
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

TEST_CASE("moe kernel: ranks of a node and of two, weights after the products and before") {
  MoeShape shape{.max_tokens = 20, .hidden = 72, .n = 72, .intermediate = 8, .experts = 5, .topk = 3};
  for (const bool on_input : {false, true}) {
    shape.weights_on_input = on_input;
    check_kernel(shape, {1, 2}, 2);
    check_kernel(shape, {2, 1}, 2);
  }
}

}  // namespace
}  // namespace mkernel::test
