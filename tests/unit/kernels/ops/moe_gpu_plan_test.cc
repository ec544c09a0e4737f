// The mixture of experts on the cuda executor, as far as no GPU is needed: which CTAs do what, what is
// refused by name, and where the tensor maps find the weights.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/ops/moe_dispatch_gemm/gpu_plan.h"
#include "kernels/ops/moe_dispatch_gemm/matrix_views.h"
#include "kernels/ops/moe_dispatch_gemm/parameters.h"
#include "tests/support/moe_cases.h"
#include "tests/support/require.h"

namespace mkernel::kernels {
namespace {

constexpr MoeShape kGpuShape{
    .max_tokens = 4096, .hidden = 512, .n = 512, .intermediate = 256, .experts = 64, .topk = 8};

std::string gpu_refusal(const MoeShape& shape, const MoeOptions& options = {},
                        const Topology& topology = {1, 4}, std::int32_t sms = 132) {
  const Status status = MoeGpuPlan::make(shape, topology, kH200.with_sms(sms), options).status();
  CHECK(status.code() == StatusCode::kInvalidArgument);
  return status.text();
}

/// What the kernel reads of operand b: element [k, column] of the expert whose first row is given.
std::uint16_t loaded(const MatrixView& view, Layout layout, std::int64_t first_row, std::int64_t k,
                     std::int64_t column) {
  const std::int64_t row = layout == Layout::kRowMajor ? k : column;
  const std::int64_t at = layout == Layout::kRowMajor ? column : k;
  REQUIRE(first_row < view.first_rows);
  REQUIRE(row < view.rows);
  REQUIRE(at < view.columns);
  std::uint16_t value = 0;
  std::memcpy(&value, static_cast<const std::byte*>(view.base) + ((first_row + row) * view.leading + at) * 2,
              sizeof(value));
  return value;
}

/// Elements from the first that the map reaches to the end of the last.
std::int64_t reach(const MatrixView& view) {
  return (view.first_rows - 1 + view.rows - 1) * view.leading + view.columns;
}

}  // namespace

TEST_CASE("moe gpu plan: CTAs are whole clusters, some dispatch, and some always compute") {
  for (const std::int32_t sms : {4, 5, 30, 78, 132}) {
    for (const std::int64_t tokens : {1, 100, 4096, 65536}) {
      MoeShape shape = kGpuShape;
      shape.max_tokens = tokens;
      const auto plan = test::require(MoeGpuPlan::make(shape, Topology(1, 4), kH200.with_sms(sms)));
      CAPTURE(sms);
      CAPTURE(tokens);
      const std::int32_t dispatch = plan.moe.dispatch_ctas;
      CHECK(plan.ctas == sms / 2 * 2);
      CHECK(dispatch % 2 == 0);
      CHECK(dispatch >= 2);
      CHECK(dispatch <= plan.ctas - 2);
      CHECK(plan.summing_ctas % 2 == 0);
      CHECK(plan.summing_ctas >= 2);
      CHECK(plan.summing_ctas <= dispatch);
      const std::int64_t clusters = (plan.ctas - plan.summing_ctas) / 2;
      CHECK(plan.moe.lead >= clusters);
      CHECK(plan.moe.lead <= clusters * clusters);
      CHECK(plan.moe.exchange.cut.block == 128);
      CHECK(plan.moe.exchange.cut.unit == 64);
      CHECK(plan.moe.exchange.columns1 == 2);
      CHECK(plan.moe.exchange.columns2 == 2);
    }
  }
}

TEST_CASE(
    "moe gpu plan: the fewer tasks an expert has, the later its second product; weights are foreseen for few "
    "rows") {
  MoeShape shape{
      .max_tokens = 8192, .hidden = 7168, .n = 7168, .intermediate = 2048, .experts = 64, .topk = 8};
  const auto plan_of = [&](std::int64_t tokens) {
    shape.max_tokens = tokens;
    return test::require(MoeGpuPlan::make(shape, Topology(1, 1), kH200));
  };
  CHECK(plan_of(8192).moe.lead == 65);  // 64 tasks of an expert, 65 clusters
  CHECK(plan_of(2048).moe.lead == 4 * 65);
  CHECK(plan_of(64).moe.lead == 8 * 65);
  CHECK(plan_of(2048).foreseen_steps == 0);
  CHECK(plan_of(64).foreseen_steps == 5);  // of 132 CTAs, 32 KiB each
}

TEST_CASE("moe gpu plan: sections by the L2, and rows of other nodes apart where there are enough rows") {
  MoeShape shape{
      .max_tokens = 2048, .hidden = 7168, .n = 7168, .intermediate = 2048, .experts = 64, .topk = 8};
  const auto sections = [&](const Topology& topology, const MoeOptions& options = {}) {
    return test::require(MoeGpuPlan::make(shape, topology, kH100, options)).moe.sections;
  };
  CHECK(sections(Topology(1, 4)).most == 12);  // 22 MB of rows
  CHECK_FALSE(sections(Topology(1, 4)).apart);
  CHECK(sections(Topology(2, 2)).apart);  // 1,024 rows of an expert
  CHECK_FALSE(sections(Topology(2, 2), {.apart = false}).apart);
  CHECK(sections(Topology(1, 4), {.section_blocks = 4}).most == 4);
  CHECK(gpu_refusal(kGpuShape, {.section_blocks = 3}) ==
        "moe: section_blocks = 3, but it must be even, 0 or more");
  shape.max_tokens = 1024;
  CHECK_FALSE(sections(Topology(2, 2)).apart);
  shape.intermediate = 14336;
  CHECK(sections(Topology(1, 4)).most == 6);
}

TEST_CASE("moe gpu plan: few tokens are summed in parts, so that every warp has one") {
  MoeShape shape{.max_tokens = 64, .hidden = 7168, .n = 7168, .experts = 64, .topk = 8};
  const auto parts = [&](std::int64_t tokens, std::int64_t n) {
    shape.max_tokens = tokens;
    shape.n = n;
    return test::require(MoeGpuPlan::make(shape, Topology(1, 1), kH200)).sum_parts;
  };
  CHECK(parts(64, 7168) == 17);  // of 132 CTAs with eight warps each
  CHECK(parts(8, 7168) == 28);   // 512 bytes each
  CHECK(parts(500, 7168) == 3);
  CHECK(parts(8192, 7168) == 1);
  CHECK(parts(1, 8) == 1);

  for (const std::int32_t bytes : {16, 512, 528, 14336}) {
    for (const std::int32_t of : {1, 3, 17, 28}) {
      std::int32_t end = 0;
      for (std::int32_t part = 0; part < of; ++part) {
        const MoeSumPart mine = moe_sum_part(bytes, of, part);
        CHECK(mine.begin == end);
        end = std::max(mine.begin, mine.end);
      }
      CHECK(end == bytes);
    }
  }
}

TEST_CASE("moe gpu plan: overrides are kept, and ranks that differ in them are told so") {
  const auto plan =
      test::require(MoeGpuPlan::make(kGpuShape, Topology(1, 4), kH200.with_sms(64), {.dispatch_ctas = 10}));
  CHECK(plan.moe.dispatch_ctas == 10);
  CHECK(plan.signature() == plan.moe.signature() + " cuda H200 sms=64 dispatch_ctas=10 summing_ctas=" +
                                std::to_string(plan.summing_ctas));
  const auto summing = test::require(
      MoeGpuPlan::make(kGpuShape, Topology(1, 4), kH200, {.block_rows = 128, .summing_ctas = 40}));
  CHECK(summing.summing_ctas == 40);
  CHECK(summing.moe.dispatch_ctas == 40);
}

TEST_CASE("moe gpu plan: the routing of most experts fits shared memory, however ranks are spread") {
  for (const std::uint32_t nodes : {1, 2, 3, 4, 8, 16}) {
    for (const std::uint32_t ranks : {1, 2, 4}) {
      MoeShape shape = kGpuShape;
      shape.experts = kMoeMostExperts;
      const auto plan = test::require(MoeGpuPlan::make(shape, Topology(nodes, ranks), kH200));
      CHECK(plan.routing_bytes <= kMoeMostRoutingBytes);
      CHECK(plan.routing_bytes >= 12U * kMoeMostExperts * 4);
    }
  }
}

TEST_CASE("moe gpu plan: what the kernel does not have is refused by field, value and limit") {
  const auto with = [](std::int64_t MoeShape::*field, std::int64_t value) {
    MoeShape shape = kGpuShape;
    shape.*field = value;
    return gpu_refusal(shape);
  };
  CHECK(with(&MoeShape::hidden, 20) ==
        "moe: hidden = 20, but it must be a multiple of 8 on the cuda executor");
  CHECK(with(&MoeShape::intermediate, 12) ==
        "moe: intermediate = 12, but it must be a multiple of 8 on the cuda executor");
  CHECK(with(&MoeShape::shared_intermediate, 12) ==
        "moe: shared_intermediate = 12, but it must be a multiple of 8 on the cuda executor");
  CHECK(with(&MoeShape::n, 4) == "moe: n = 4, but it must be a multiple of 8 on the cuda executor");
  CHECK(with(&MoeShape::topk, 17) == "moe: topk = 17, but it must be 1..16 on the cuda executor");
  CHECK(with(&MoeShape::topk, 65) == "moe: topk = 65, but it must be 1..64");
  CHECK(with(&MoeShape::experts, 1025) == "moe: experts = 1025, but it must be 1..1024 on the cuda executor");
  CHECK(with(&MoeShape::intermediate, (1 << 27)) ==
        "moe: intermediate = 134217728, but it must be so small that rows of the weights of 16 experts have "
        "32-bit numbers on the cuda executor");
  CHECK(gpu_refusal(kGpuShape, {}, {1, 17}) ==
        "moe: ranks of a node = 17, but it must be 1..16 on the cuda executor");
  CHECK(gpu_refusal(kGpuShape, {}, {17, 1}) == "moe: nodes = 17, but it must be 1..16 on the cuda executor");
  CHECK(gpu_refusal(kGpuShape, {}, {13, 5}) == "moe: world = 65, but it must be 1..64 on the cuda executor");
  CHECK(gpu_refusal(kGpuShape, {.block_rows = 64}) ==
        "moe: block_rows = 64, but it must be 128 on the cuda executor");
  CHECK(gpu_refusal(kGpuShape, {.gated_columns = 256}) ==
        "moe: gated_columns = 256, but it must be 128 on the cuda executor");
  CHECK(gpu_refusal(kGpuShape, {.dispatch_ctas = 3}) ==
        "moe: comm_ctas = 3, but it must be even, 0..130 on the cuda executor");
  CHECK(gpu_refusal(kGpuShape, {.dispatch_ctas = 8, .summing_ctas = 10}) ==
        "moe: summing_ctas = 10, but it must be even, 0..8 on the cuda executor");
  CHECK(gpu_refusal(kGpuShape, {}, {1, 4}, 3) ==
        "moe: sms = 3, but it must be at least 4 on the cuda executor");
}

TEST_CASE("moe weight views: every element of every expert, in both layouts, w1 whole or apart") {
  constexpr std::int64_t kExperts = 3;
  for (const Layout layout : {Layout::kRowMajor, Layout::kColumnMajor}) {
    for (const std::int64_t inner : {0, 16}) {
      for (const bool apart : {false, true}) {
        if (apart && inner == 0) continue;
        const MoeShape shape{.max_tokens = 1,
                             .hidden = 24,
                             .n = 40,
                             .intermediate = inner,
                             .experts = kExperts,
                             .topk = 1,
                             .w_layout = layout,
                             .shared_intermediate = inner > 0 ? 32 : 0};
        const test::MoeWeights weights = test::random_weights(shape, 5);
        const std::int64_t width = inner > 0 ? inner : shape.n, all = inner > 0 ? 2 * inner : shape.n;
        const test::MoeWeightOperands operands = test::weight_operands(shape, weights, apart);
        MoeArguments arguments{.w1 = operands.w1.data(), .w2 = operands.w2.data()};
        arguments.shared_w1 = operands.shared_w1.data();
        arguments.shared_w2 = operands.shared_w2.data();
        if (apart) {
          arguments.w1_up = operands.w1_up.data();
          arguments.shared_w1_up = operands.shared_w1_up.data();
        }
        const MoeWeightViews views = moe_weight_views(shape, kExperts, arguments);
        const auto check = [&](const MatrixView& view, std::int64_t rows, std::int64_t k, std::int64_t first,
                               std::int64_t columns, const std::vector<std::uint16_t>& matrices,
                               std::int64_t of_all) {
          CHECK(view.box_rows == 64);
          CHECK(view.box_columns == 64);
          std::size_t wrong = 0;
          for (std::int64_t expert = 0; expert < (rows > 0 ? kExperts : 1); ++expert)
            for (std::int64_t i = 0; i < k; ++i)
              for (std::int64_t column = 0; column < columns; ++column)
                wrong += loaded(view, layout, expert * rows, i, column) !=
                         matrices[static_cast<std::size_t>((expert * k + i) * of_all + first + column)];
          CHECK(wrong == 0);
        };
        check(views.w1, views.weight_rows1, shape.hidden, 0, width, weights.w1, all);
        CHECK(reach(views.w1) <= std::ssize(operands.w1));
        if (inner == 0) continue;
        check(views.w1_up, views.weight_rows1, shape.hidden, inner, inner, weights.w1, all);
        // From the address of its half on, all that is left of w1.
        CHECK(reach(views.w1_up) <=
              (apart
                   ? std::ssize(operands.w1_up)
                   : std::ssize(operands.w1) - (layout == Layout::kRowMajor ? inner : inner * shape.hidden)));
        check(views.w2, views.weight_rows2, inner, 0, shape.n, weights.w2, shape.n);
        CHECK(reach(views.w2) <= std::ssize(operands.w2));
        // Of the shared expert.
        constexpr std::int64_t kShared = 32;
        const MoeWeightViews shared = moe_shared_weight_views(shape, arguments);
        check(shared.w1, 0, shape.hidden, 0, kShared, weights.shared_w1, 2 * kShared);
        check(shared.w1_up, 0, shape.hidden, kShared, kShared, weights.shared_w1, 2 * kShared);
        check(shared.w2, 0, kShared, 0, shape.n, weights.shared_w2, shape.n);
      }
    }
  }
}

}  // namespace mkernel::kernels
