// Which data of few rows kernels mark (plan/push_reduce_plan.h, plan/push_sums_plan.h), where they lie, and
// how long they are expected to take.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <tuple>

#include "kernels/base/lent_workspace.h"
#include "kernels/ops/gemm_ar/plan.h"
#include "kernels/plan/tile_reduce_plan.h"

namespace mkernel::kernels::marks {
namespace {

TEST_CASE(
    "kernels mark sums where owners share tiles on one node, but not where that takes too much memory") {
  const auto plan_with = [](const GemmShape& shape, const Topology& topology,
                            std::optional<bool> to_all = false) {
    return GemmArPlan::make(shape, topology, 0, kH200, {.to_all = to_all}).value();
  };
  for (const std::uint32_t ranks : {2U, 3U, 8U}) {
    for (const std::int64_t m : {1, 64, 100}) {
      const GemmArPlan plan = plan_with({m, 1032, 64}, {1, ranks});
      CHECK(plan.product.marks_sums());
      const PushSumsPlan& sums = plan.sums;
      // In the operation's own workspace behind its words.
      std::uint64_t end = plan.word_bytes();
      for (std::int32_t owner = 0; owner < static_cast<std::int32_t>(ranks); ++owner) {
        CHECK(sums.marked_offset(owner) % 128 == 0);
        CHECK(sums.marked_offset(owner) >= end);
        CHECK(sums.marked_offset(owner) - sums.marked_offset(0) == sums.sums_offset(owner) - sums.begin);
        end = sums.marked_offset(owner) + static_cast<std::uint64_t>(sums.units) * PushSumsPlan::kUnitBytes;
      }
      CHECK(sums.marked_bytes() == end - sums.marked_offset(0));
      // Behind them the slots.
      const PushReducePlan& slots = plan.product.reduce;
      REQUIRE(slots.marked);
      CHECK(slots.marked_begin == end);
      CHECK(slots.marked_bytes() == 2 * ranks * slots.slot_bytes());
      CHECK(plan.kernel_word_bytes() == end + slots.marked_bytes());
      CHECK(plan.kernel_data_bytes() == kLentAlignment);
    }
  }
  for (const auto& [shape, topology] : {std::tuple{GemmShape{64, 1032, 64}, Topology(2, 2)},
                                        {GemmShape{1024, 1032, 64}, Topology(1, 2)},
                                        {GemmShape{64, 1032, 64}, Topology(1, 1)}}) {
    const GemmArPlan plan = plan_with(shape, topology);
    CHECK_FALSE(plan.product.marks_sums());
    CHECK_FALSE(plan.product.reduce.marked);
    CHECK(plan.kernel_word_bytes() == plan.word_bytes());
    CHECK(plan.kernel_data_bytes() == plan.data_bytes());
  }
  CHECK_FALSE(plan_with({64, 1032, 64}, {1, 2}, true).product.marks_sums());
  // 8 ranks x 128 rows x 32768 columns x 2 bytes are just 64 MiB.
  CHECK(plan_with({1024, 32768, 64}, {1, 8}).product.marks_sums());
  CHECK_FALSE(plan_with({1024, 32776, 64}, {1, 8}).product.marks_sums());
}

TEST_CASE("kernels mark slots that owners share tiles of where the product takes one wave") {
  const auto plan_of_columns = [](OpKind kind, std::int64_t columns, const Topology& topology) {
    return TileReducePlan::make(kind, {64, columns, 7168}, topology, 0, kH200,
                                {.tile = Sm90Tile::k128x64, .to_all = false})
        .value();
  };
  for (const OpKind kind : {OpKind::kGemmRs, OpKind::kGemmAr}) {
    // Two of 132 CTAs do not multiply.
    const TileReducePlan one = plan_of_columns(kind, 130 * 64, {1, 4});
    CHECK(one.reduce.marked);
    CHECK(one.reduce_ctas == 2);
    CHECK(one.reduce.marked_begin == (one.word_bytes() + 127) / 128 * 128);
    CHECK(one.kernel_word_bytes() == one.reduce.marked_begin + 2 * 4 * one.reduce.slot_bytes());
    CHECK(one.kernel_data_bytes() == kLentAlignment);
    const TileReducePlan two = plan_of_columns(kind, 131 * 64, {1, 4});
    CHECK_FALSE(two.reduce.marked);
    CHECK(two.kernel_word_bytes() == two.word_bytes());
    CHECK(two.kernel_data_bytes() == two.data_bytes());
    CHECK_FALSE(plan_of_columns(kind, 64, {2, 2}).reduce.marked);
  }
  // Ranks agree.
  for (const std::uint32_t rank : {1U, 3U}) {
    const auto other = TileReducePlan::make(OpKind::kGemmAr, {64, 4096, 7168}, Topology(1, 4), rank, kH200,
                                            {.to_all = false});
    CHECK(other.value().reduce.marked);
  }
}

TEST_CASE("data that are marked are expected to come in a third of the time of those with words") {
  const auto latencies = [](OpKind kind, std::int64_t columns) {
    const GemmShape shape{64, columns, 7168};
    const auto seconds = [&](double latency) {
      Machine machine = kH200;
      machine.push_latency = latency;
      const auto plan = TileReducePlan::make(kind, shape, Topology(1, 4), 0, machine,
                                             {.tile = Sm90Tile::k128x64, .to_all = false});
      return estimated_seconds(kind, shape, plan.value());
    };
    return (seconds(10e-6) - seconds(0)) / 10e-6;
  };
  CHECK(std::abs(latencies(OpKind::kGemmAr, 4096) - 2.0 / 3) < 1e-4);
  CHECK(std::abs(latencies(OpKind::kGemmAr, 16384) - 4.0 / 3) < 1e-4);
  CHECK(std::abs(latencies(OpKind::kGemmRs, 4096) - 1.0 / 3) < 1e-4);
  CHECK(std::abs(latencies(OpKind::kGemmRs, 16384) - 1) < 1e-4);
}

}  // namespace
}  // namespace mkernel::kernels::marks
