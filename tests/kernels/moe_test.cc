// The mixture-of-experts layer on a fabric in one process: every element against fp64, the bytes on the wire,
// the same bits under every timing.
#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "tests/kernels/moe_layer.h"

namespace mkernel::test {
namespace {

std::vector<Tensor> run_launches(const MoeShape& shape, const FabricOptions& options, int launches,
                                 const kernels::MoeOptions& plan = {}) {
  MoeLayer layer(shape, options, plan);
  return run_launches(layer, launches);
}

constexpr MoeNodes kWorlds[] = {{1, 1}, {1, 2}, {1, 4}, {1, 8}, {2, 1},
                                {2, 2}, {2, 4}, {3, 2}, {4, 1}, {4, 2}};
/// Several blocks, tiles, pieces and chunks even of small shapes.
const kernels::MoeOptions kSmall{
    .block_rows = 8, .unit_rows = 4, .tile_columns = 5, .dispatch_ctas = 3, .pieces = 4};

TEST_CASE("moe: the cases of both executors") {
  for (const MoeCase& of : moe_cases()) {
    CAPTURE(of.name);
    run_launches(of.shape,
                 {.nodes = of.nodes,
                  .ranks_per_node = of.ranks,
                  .rings = 2,
                  .seed = 3,
                  .across_nodes = of.across_nodes},
                 3);
  }
}

TEST_CASE("moe is right on every world, with one product and with two, launch after launch") {
  for (const MoeNodes world : kWorlds) {
    for (const std::int64_t intermediate : {0, 12}) {
      for (const DataType dtype : {DataType::kBf16, DataType::kF16}) {
        CAPTURE(world.nodes);
        CAPTURE(world.ranks);
        CAPTURE(intermediate);
        // 11 experts are no multiple of any world here but 1.
        const MoeShape shape{.max_tokens = 37,
                             .hidden = 20,
                             .n = 18,
                             .intermediate = intermediate,
                             .experts = 11,
                             .topk = 3,
                             .dtype = dtype};
        const FabricOptions fabric{
            .nodes = world.nodes, .ranks_per_node = world.ranks, .rings = 2, .seed = 3};
        run_launches(shape, fabric, 4, dtype == DataType::kBf16 ? kSmall : kernels::MoeOptions{});
      }
    }
  }
}

TEST_CASE("moe multiplies rows by their weights before the first product when it is asked to") {
  for (const MoeNodes world : {MoeNodes{1, 2}, {2, 2}, {3, 1}}) {
    for (const std::int64_t intermediate : {0, 12}) {
      CAPTURE(world.nodes);
      CAPTURE(intermediate);
      MoeShape shape{
          .max_tokens = 37, .hidden = 20, .n = 18, .intermediate = intermediate, .experts = 11, .topk = 3};
      const FabricOptions fabric{.nodes = world.nodes, .ranks_per_node = world.ranks, .rings = 2, .seed = 3};
      const auto after = run_launches(shape, fabric, 2);
      shape.weights_on_input = true;
      CHECK(run_launches(shape, fabric, 2) != after);
    }
  }
}

TEST_CASE("moe adds what the shared expert makes of every token") {
  for (const MoeNodes world : {MoeNodes{1, 1}, {1, 4}, {2, 2}, {3, 1}}) {
    for (const std::int64_t shared : {5, 12, 33}) {
      CAPTURE(world.nodes);
      CAPTURE(world.ranks);
      CAPTURE(shared);
      MoeShape shape{.max_tokens = 37,
                     .hidden = 20,
                     .n = 18,
                     .intermediate = 12,
                     .experts = 11,
                     .topk = 3,
                     .dtype = shared == 33 ? DataType::kF16 : DataType::kBf16};
      const FabricOptions fabric{.nodes = world.nodes, .ranks_per_node = world.ranks, .rings = 2, .seed = 3};
      const kernels::MoeOptions plan = shared == 12 ? kernels::MoeOptions{} : kSmall;
      const auto without = run_launches(shape, fabric, 2, plan);
      shape.shared_intermediate = shared;
      shape.weights_on_input = shared == 5;
      const auto with = run_launches(shape, fabric, 4, plan);
      CHECK(with[0] != without[0]);
      // The same bits whatever the timing.
      CHECK(run_launches(shape, {.nodes = world.nodes, .ranks_per_node = world.ranks, .seed = 4}, 4, plan) ==
            with);
    }
  }
}

TEST_CASE("moe takes weights of either layout, w1 whole or in two operands") {
  for (const std::int64_t intermediate : {0, 7}) {
    for (const Layout layout : {Layout::kRowMajor, Layout::kColumnMajor}) {
      CAPTURE(intermediate);
      CAPTURE(layout == Layout::kColumnMajor);
      const MoeShape shape{.max_tokens = 30,
                           .hidden = 13,
                           .n = 11,
                           .intermediate = intermediate,
                           .experts = 5,
                           .topk = 2,
                           .w_layout = layout,
                           .shared_intermediate = intermediate > 0 ? 10 : 0};
      MoeLayer layer(shape, {.nodes = 2, .ranks_per_node = 2, .seed = 4}, kSmall);
      const auto inputs = layer.inputs(zipf_router(shape, 3), 30, 9);
      const auto whole = layer.run_checked(inputs);
      if (intermediate == 0) continue;
      layer.set_w1_up(true);
      CHECK(layer.run_checked(inputs) == whole);
      layer.set_w1_up(false);
      CHECK(layer.run_checked(inputs) == whole);
    }
  }
}

TEST_CASE("moe works where ranks are not numbered node by node") {
  const MoeShape shape{.max_tokens = 30,
                       .hidden = 12,
                       .n = 10,
                       .intermediate = 6,
                       .experts = 9,
                       .topk = 4,
                       .dtype = DataType::kF16};
  for (const MoeNodes world : {MoeNodes{2, 2}, {2, 3}, {3, 2}, {4, 2}})
    run_launches(shape, {.nodes = world.nodes, .ranks_per_node = world.ranks, .across_nodes = true}, 3,
                 kSmall);
}

TEST_CASE("moe splits rows over several puts and blocks") {
  // 600 rows of 4 KiB are three puts; an expert with all rows has three blocks of 256.
  const MoeShape shape{.max_tokens = 600, .hidden = 2048, .n = 24, .experts = 2, .topk = 1};
  MoeLayer layer(shape, {.nodes = 2, .ranks_per_node = 1, .seed = 8});
  const Router other = [](std::uint32_t source, std::int64_t) {
    return std::vector<std::int32_t>{source == 0 ? 1 : 0};
  };
  layer.run_checked(layer.inputs(
      other, [](std::uint32_t rank) { return rank == 0 ? 600 : 5; }, 4));
  CHECK(layer.fabric().delivered(0, 1, 1) == 1 + 3);
  CHECK(layer.fabric().delivered(0, 1, 2) == 3);
}

TEST_CASE("moe takes any skew: all tokens to one expert, one token in the world, none at all") {
  const MoeShape shape{.max_tokens = 150, .hidden = 16, .n = 16, .intermediate = 8, .experts = 8, .topk = 1};
  for (const std::int32_t expert : {0, 7}) {
    MoeLayer layer(shape, {.nodes = 2, .ranks_per_node = 2, .seed = 2});
    layer.run_checked(layer.inputs(
        one_expert(expert), [](std::uint32_t rank) { return 150 - 40 * rank; }, 6));
    for (const std::uint32_t only : {3U, 0U, 9U}) {
      layer.run_checked(layer.inputs(
          one_expert(expert), [&](std::uint32_t rank) { return rank == only ? 1 : 0; }, 7));
    }
  }
}

TEST_CASE("moe sends a token to a node once, and no row to a node without its experts") {
  const MoeShape shape{.max_tokens = 30, .hidden = 16, .n = 8, .experts = 8, .topk = 4};
  MoeLayer layer(shape, {.nodes = 2, .ranks_per_node = 2});
  // Experts 0..3 live on node 0. Ranks 0 and 2 stay at home, rank 1 goes to the other node with all four
  // entries, rank 3 with two of four.
  const Router router = [](std::uint32_t rank, std::int64_t) -> std::vector<std::int32_t> {
    if (rank == 0) return {3, 0, 2, 1};
    if (rank == 1) return {4, 7, 5, 6};
    if (rank == 2) return {5, 4, 7, 6};
    return {6, 0, 3, 5};
  };
  layer.run_checked(layer.inputs(router, 30, 1));
  const std::uint64_t counts = 128;                       // 16 + (8 experts + 2 nodes) * 4, padded
  const std::uint64_t out = 30 * (16 + 4 * 16 + 16 * 2);  // head, entries, row
  const std::uint64_t back = 30 * 8 * 2;                  // one sum per token
  const std::uint64_t expected[] = {counts, counts + out + back, counts, counts + out + back};
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    // Ranks 1 and 3 are rail peers: each sends its own rows and the other's sums.
    CHECK(layer.operation(rank).wire_bytes() == expected[rank]);
    CHECK(layer.fabric().wire_bytes(rank) == expected[rank]);
  }
}

TEST_CASE("moe gives the same bits whatever the fabric does and however tokens are cut") {
  const MoeShape shape{.max_tokens = 40, .hidden = 16, .n = 16, .intermediate = 8, .experts = 10, .topk = 3};
  const auto first = run_launches(shape, {.nodes = 3, .ranks_per_node = 2, .seed = 0}, 3);
  for (const std::uint64_t seed : {1, 2, 3}) {
    const kernels::MoeOptions plan{.dispatch_ctas = static_cast<std::int32_t>(seed),
                                   .pieces = static_cast<std::int32_t>(2 * seed)};
    CHECK(run_launches(shape, {.nodes = 3, .ranks_per_node = 2, .seed = seed}, 3, plan) == first);
  }
}

}  // namespace
}  // namespace mkernel::test
