// The roles of the mixture of experts' kernel on the host: every element against fp64, launch after launch,
// and what is refused.
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/kernels/roles/moe_ranks.h"

namespace mkernel::test {
namespace {

/// Launches with other inputs and other numbers of tokens, the first with as many as may be.
void check_launches(const MoeShape& shape, const Nodes& nodes, const Spread& spread, int launches) {
  CAPTURE(nodes.nodes);
  CAPTURE(nodes.ranks);
  CAPTURE(nodes.across);
  CAPTURE(shape.experts);
  CAPTURE(shape.intermediate);
  HostRanks world(shape, nodes, spread);
  for (int launch = 0; launch < launches; ++launch) {
    const auto seed = 100 + static_cast<std::uint64_t>(launch);
    std::vector<MoeInput> inputs;
    for (std::uint32_t rank = 0; rank < nodes.world(); ++rank) {
      const auto some = (7 * (rank + 1) + 13 * static_cast<std::uint32_t>(launch)) % (shape.max_tokens + 1);
      inputs.push_back(
          random_input(shape, rank, launch == 0 ? shape.max_tokens : some, random_router(shape, seed), seed));
    }
    world.check(inputs);
  }
}

TEST_CASE("a rank alone: one product and two, both types") {
  for (const std::int64_t intermediate : {0, 24}) {
    for (const DataType type : {DataType::kBf16, DataType::kF16}) {
      check_launches({.max_tokens = 37,
                      .hidden = 24,
                      .n = 16,
                      .intermediate = intermediate,
                      .experts = 11,
                      .topk = 3,
                      .dtype = type},
                     {}, {}, 3);
    }
  }
}

TEST_CASE("blocks in pairs and alone, odd numbers of columns of tiles") {
  // 333 rows of an expert: two blocks above each other and one beside itself.
  const MoeShape shape{
      .max_tokens = 500, .hidden = 8, .n = 264, .intermediate = 136, .experts = 3, .topk = 2};
  check_launches(shape, {}, {}, 2);
  check_launches({.max_tokens = 300, .hidden = 8, .n = 520, .experts = 1, .topk = 1}, {}, {}, 1);
}

TEST_CASE("ranks of a node, experts that not every rank has as many of") {
  for (const std::uint32_t ranks : {2U, 3U, 4U}) {
    for (const std::int64_t experts : {3, 11}) {
      check_launches(
          {.max_tokens = 50, .hidden = 16, .n = 16, .intermediate = 8, .experts = experts, .topk = 3},
          {1, ranks}, {}, 2);
    }
  }
}

TEST_CASE("nodes: a token crosses once, its rows are summed there and the sum returns") {
  for (const Nodes& nodes : {Nodes{2, 1}, Nodes{2, 2}, Nodes{3, 2}, Nodes{2, 2, true}, Nodes{4, 1}}) {
    for (const std::int64_t intermediate : {0, 8}) {
      check_launches(
          {.max_tokens = 40, .hidden = 16, .n = 16, .intermediate = intermediate, .experts = 11, .topk = 4},
          nodes, {}, 3);
    }
  }
}

TEST_CASE("many experts, sixteen for each token, one dispatching CTA or four") {
  const MoeShape shape{.max_tokens = 40, .hidden = 8, .n = 8, .intermediate = 8, .experts = 300, .topk = 16};
  for (const std::int32_t ctas : {1, 4}) check_launches(shape, {1, 2}, {.dispatch_ctas = ctas}, 2);
}

TEST_CASE("a shared expert: every world, blocks in pairs and alone, launches that are refused between") {
  for (const Nodes& nodes : {Nodes{1, 1}, Nodes{1, 3}, Nodes{2, 2}, Nodes{2, 2, true}, Nodes{3, 1}}) {
    for (const DataType type : {DataType::kBf16, DataType::kF16}) {
      check_launches({.max_tokens = 40,
                      .hidden = 16,
                      .n = 264,
                      .intermediate = 24,
                      .experts = 11,
                      .topk = 3,
                      .dtype = type,
                      .shared_intermediate = type == DataType::kBf16 ? 8 : 136},
                     nodes, {}, 3);
    }
  }
  const MoeShape shape{.max_tokens = 300,
                       .hidden = 8,
                       .n = 16,
                       .intermediate = 8,
                       .experts = 3,
                       .topk = 2,
                       .shared_intermediate = 272};
  HostRanks world(shape, {1, 2}, {});
  const auto good = world.inputs(random_router(shape, 1), 300, 1);
  auto bad = good;
  bad[1].topk[5] = 3;
  for (int round = 0; round < 3; ++round) {
    world.check(good);
    CHECK(world.refused(bad).problem.kind != RoutingProblem::kNone);
  }
  world.check(world.inputs(zipf_router(shape, 2), 131, 2));
}

TEST_CASE("a shared expert is waited for where it is the last to come") {
  // All tokens are rank 0's, and go to the expert of rank 1: it is long through when rank 0 still computes
  // its shared expert, of which the second product follows the first at once.
  const MoeShape shape{.max_tokens = 60,
                       .hidden = 8,
                       .n = 16,
                       .intermediate = 8,
                       .experts = 2,
                       .topk = 1,
                       .shared_intermediate = 3000};
  HostRanks world(shape, {1, 2}, {.pause = 100});
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    world.check(
        {random_input(shape, 0, 60, one_expert(1), seed), random_input(shape, 1, 0, one_expert(1), seed)});
  }
}

TEST_CASE("all tokens to one expert, and one token") {
  const MoeShape shape{.max_tokens = 200, .hidden = 8, .n = 8, .intermediate = 8, .experts = 8, .topk = 1};
  HostRanks world(shape, {1, 2}, {});
  for (const std::int32_t expert : {0, 7}) {
    world.check(world.inputs(one_expert(expert), 200, 1));
    world.check(
        {random_input(shape, 0, 1, one_expert(expert), 1), random_input(shape, 1, 0, one_expert(expert), 1)});
  }
}

TEST_CASE("bad routing of any rank is refused on all, with the first entry that is bad; then all goes on") {
  const MoeShape shape{.max_tokens = 40, .hidden = 8, .n = 8, .intermediate = 8, .experts = 8, .topk = 2};
  HostRanks world(shape, {3, 1}, {});
  const auto good = world.inputs(random_router(shape, 1), 40, 1);
  world.check(good);
  auto bad = good;
  bad[1].topk[5] = 8;
  bad[1].topk[70] = -1;
  bad[2].topk[0] = 99;
  MoeRefusal why = world.refused(bad);
  CHECK(why.problem.to_status(why.rank, 8).text() == "moe: rank 1: topk[2, 1] = 8, but it must be 0..7");
  world.check(good);
  bad = good;
  bad[2].topk[7] = bad[2].topk[6];
  why = world.refused(bad);
  CHECK(why.problem.to_status(why.rank, 8).text().find("rank 2: topk[3, 1]") != std::string::npos);
  bad = good;
  bad[0].weights[11] = std::numeric_limits<float>::quiet_NaN();
  why = world.refused(bad);
  CHECK(why.problem.to_status(why.rank, 8).text() == "moe: rank 0: weights[5, 1] is not a number");
  world.check(good);
}

TEST_CASE("more rows than the capacity are refused on all ranks; then all goes on") {
  const MoeShape shape{.max_tokens = 100,
                       .hidden = 8,
                       .n = 8,
                       .intermediate = 8,
                       .experts = 4,
                       .topk = 1,
                       .dtype = DataType::kBf16,
                       .capacity = 256};
  HostRanks world(shape, {1, 2}, {});
  world.check(world.inputs(one_expert(1), 100, 1));
  auto more = world.inputs(one_expert(1), 100, 1);
  more[1].topk[3] = 0;  // 199 rows and 1 row are 256 and 64 with their padding
  const MoeRefusal why = world.refused(more);
  CHECK(why.problem.kind == RoutingProblem::kNone);
  CHECK(why.expert == 1);
  CHECK(why.rows == 199);
  CHECK(why.padded == 320);
  world.check(world.inputs(one_expert(2), 100, 1));
}

TEST_CASE("sections: bands of an expert's rows, near and far rows apart, in every world") {
  // About 330 rows of an expert of each rank. Of two nodes an expert has near blocks, one with rows of both
  // kinds, and far ones.
  const MoeShape shape{.max_tokens = 500, .hidden = 8, .n = 16, .intermediate = 136, .experts = 3, .topk = 2};
  const Spread bands{.section_blocks = 2}, whole{.apart = true};
  check_launches(shape, {}, bands, 2);
  for (const Nodes& nodes : {Nodes{2, 1}, Nodes{3, 1}, Nodes{2, 2, true}}) {
    check_launches(shape, nodes, bands, 2);
    check_launches(shape, nodes, whole, 1);
  }
  MoeShape one_product = shape;
  one_product.intermediate = 0;
  one_product.dtype = DataType::kF16;
  check_launches(one_product, {2, 1}, bands, 2);
}

TEST_CASE("parts of a token that different warps sum, also more parts than there is to share out") {
  const MoeShape shape{
      .max_tokens = 30, .hidden = 8, .n = 1032, .experts = 5, .topk = 3, .dtype = DataType::kF16};
  for (const std::int32_t parts : {2, 5, 7}) {
    check_launches(shape, {1, 2}, {.sum_parts = parts}, 2);
    check_launches(shape, {2, 1}, {.sum_parts = parts}, 2);
  }
}

TEST_CASE("the same bits, however the work is spread") {
  const MoeShape shape{.max_tokens = 280,
                       .hidden = 16,
                       .n = 264,
                       .intermediate = 40,
                       .experts = 4,
                       .topk = 3,
                       .shared_intermediate = 136};
  std::vector<std::vector<std::uint16_t>> first;
  const Spread in_parts{.section_blocks = 2, .sum_parts = 2}, not_apart{.apart = false};
  for (const Spread& spread : {Spread{}, Spread{4, 4, 1, 3}, Spread{1, 5, 5, 1}, in_parts, not_apart}) {
    HostRanks world(shape, {2, 1}, spread);
    const auto y = world.launch(world.inputs(zipf_router(shape, 3), 100, 2));
    if (first.empty()) first = y;
    CHECK(y == first);
  }
}

}  // namespace
}  // namespace mkernel::test
