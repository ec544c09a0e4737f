// The plan of the mixture-of-experts layer: what it makes of a shape, that a pool of the worst case takes any
// routing, that every number fits, and what is refused. The exchange itself is simulated in
// plan/simulation/moe_simulation_test.cc.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ops/moe_dispatch_gemm/plan.h"
#include "kernels/plan/cuts.h"
#include "kernels/plan/expert_table.h"
#include "proto/abi/version.h"

namespace mkernel::kernels {
namespace {

const Topology kWorlds[] = {{1, 1}, {1, 4}, {2, 1}, {2, 2}, {2, 4}, {3, 2}, {4, 8}, {16, 64}};
constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();

MoePlan moe_plan_of(const MoeShape& shape, const Topology& topology, const MoeOptions& options = {}) {
  auto plan = MoePlan::make(shape, topology, options);
  REQUIRE_MESSAGE(plan.ok(), plan.status().to_string());
  return std::move(plan).value();
}

std::string refused_text(const MoeShape& shape, const Topology& topology, const MoeOptions& options = {}) {
  const Status status = MoePlan::make(shape, topology, options).status();
  CHECK(status.code() == StatusCode::kInvalidArgument);
  return status.text();
}

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("moe plan: sizes of the exchange follow from the shape") {
  for (const Topology& topology : kWorlds) {
    for (const std::int64_t intermediate : {0, 300}) {
      const std::int64_t shared = intermediate > 0 ? 1700 : 0;
      const MoeShape shape{.max_tokens = 700,
                           .hidden = 1001,
                           .n = 1500,
                           .intermediate = intermediate,
                           .experts = 37,
                           .topk = 5,
                           .shared_intermediate = shared};
      const MoePlan plan = moe_plan_of(shape, topology);
      const ExpertExchangePlan& exchange = plan.exchange;
      CAPTURE(topology.world());
      CHECK(exchange.nodes() == static_cast<std::int32_t>(topology.nodes()));
      CHECK(exchange.row_bytes == 2016);  // 2002, in whole 16
      CHECK(exchange.hidden_bytes == (intermediate > 0 ? 608 : 0));
      CHECK(exchange.finished_bytes == 3008);
      CHECK(exchange.shared_bytes == (shared > 0 ? 3408 : 0));
      CHECK(exchange.entries() == exchange.shared_entry(shared > 0 ? 700 : 0));
      CHECK(plan.shared_expert_tiles(0).first() == 0);
      CHECK(plan.shared_expert_tiles(513).blocks == (shared > 0 ? exchange.cut.blocks(513) : 0));
      CHECK(exchange.cut.block % exchange.cut.unit == 0);
      CHECK(plan.requirements().workspace_bytes == exchange.bytes());
      CHECK(plan.requirements().lanes == (topology.nodes() > 1 ? 2 : 0));
      // The columns of both products are cut without gaps.
      const auto check_columns = [&](bool second, std::int64_t all, std::int32_t columns,
                                     bool of_shared = false) {
        std::int64_t next = 0;
        for (std::int32_t column = 0; column < columns; ++column) {
          const Range range = plan.columns({second, 0, 0, column, of_shared});
          CHECK(range.begin == next);
          CHECK(range.size() > 0);
          next = range.end;
        }
        CHECK(next == all);
      };
      check_columns(false, plan.gated() ? intermediate : shape.n, exchange.columns1);
      if (plan.gated()) check_columns(true, shape.n, exchange.columns2);
      if (plan.shared()) {
        check_columns(false, shared, exchange.shared_columns1, true);
        check_columns(true, shape.n, exchange.columns2, true);
      }
      CHECK(exchange.last_columns() == ceil_div(shape.n, plan.tile_columns));
    }
  }
}

TEST_CASE("moe plan: a piece is one put, whatever crosses") {
  for (const std::int64_t hidden : {std::int64_t{8}, std::int64_t{7168}, std::int64_t{1} << 28}) {
    for (const std::int64_t tokens : {1, 5, 1000, 100000}) {
      for (const std::int32_t wanted : {0, 1, 256}) {
        const MoeShape shape{.max_tokens = tokens, .hidden = hidden, .n = 64, .experts = 8, .topk = 2};
        const MoeOptions options{.pieces = static_cast<std::int32_t>(std::min<std::int64_t>(wanted, tokens))};
        const auto made = MoePlan::make(shape, Topology(2, 1), options);
        if (!made.ok()) {
          CHECK(holds(made.status().text(), "2^48"));
          continue;
        }
        const ExpertExchangePlan& exchange = made.value().exchange;
        CHECK(exchange.pieces >= std::max(1, options.pieces));
        for (const std::int32_t rows : {1, static_cast<std::int32_t>(tokens)}) {
          for (std::int32_t piece = 0; piece < exchange.pieces; ++piece) {
            const auto count = static_cast<std::uint64_t>(exchange.piece_begin(piece + 1, rows) -
                                                          exchange.piece_begin(piece, rows));
            CHECK(count * exchange.crossing_bytes() <= abi::kMaxPutBytes);
            CHECK(count * exchange.finished_bytes <= abi::kMaxPutBytes);
          }
        }
      }
    }
  }
}

TEST_CASE("moe plan: without a capacity a pool takes any routing, and no row more than it must") {
  std::mt19937_64 random(11);
  for (const auto& sizes : {std::pair{1, 1}, {8, 2}, {11, 3}, {40, 16}}) {
    const int experts = sizes.first, topk = sizes.second;
    for (const Topology& topology : {Topology(1, 1), Topology(1, 4), Topology(2, 4)}) {
      const MoeShape shape{.max_tokens = 130, .hidden = 8, .n = 8, .experts = experts, .topk = topk};
      const ExpertExchangePlan exchange = moe_plan_of(shape, topology).exchange;
      const std::int32_t world = exchange.owners.world;
      CAPTURE(experts);
      CAPTURE(world);
      const auto table_of = [&](const std::vector<std::int32_t>& counts) {
        return HostExpertTable(exchange.owners, exchange.cut, counts);
      };
      std::vector<std::int32_t> all_to_one(static_cast<std::size_t>(world * experts));
      std::int32_t fullest = 0;  // an owner with as many experts as any
      while (exchange.owners.count(fullest) < exchange.owners.max_local()) ++fullest;
      for (int draw = 0; draw < 50; ++draw) {
        // Every token goes to as many experts of one owner as it may, the first ones more often.
        std::vector<std::int32_t> counts(all_to_one.size());
        const std::int32_t here = std::min(topk, exchange.owners.count(fullest));
        for (std::int32_t source = 0; source < world; ++source) {
          for (std::int32_t token = 0; token < 130; ++token) {
            const auto skip = static_cast<std::int32_t>(
                random() % static_cast<std::uint64_t>(exchange.owners.count(fullest)));
            for (std::int32_t j = 0; j < here; ++j) {
              const std::int32_t local =
                  (draw % 2 == 0 || token == 0 ? j + skip : j) % exchange.owners.count(fullest);
              ++counts[static_cast<std::size_t>(source * experts + exchange.owners.first(fullest) + local)];
            }
          }
        }
        CHECK(table_of(counts).first_overflow(exchange.capacity_rows) < 0);
        CHECK(table_of(counts).view().of_rank(fullest).all_blocks() <= exchange.max_blocks());
      }
      // As many rows as there can be, and one of padding too few in each expert, are the whole pool.
      const std::int32_t rows = world * 130 * std::min(topk, exchange.owners.max_local());
      CHECK(exchange.capacity_rows >= rows);
      CHECK(exchange.capacity_rows <= rows + exchange.owners.max_local() * (exchange.cut.unit - 1));
    }
  }
}

TEST_CASE("moe plan: a capacity is whole units, and never more than the worst case") {
  MoeShape shape{.max_tokens = 1000, .hidden = 8, .n = 8, .experts = 4, .topk = 2};
  const auto rows = [&](std::int64_t capacity) {
    shape.capacity = capacity;
    return moe_plan_of(shape, Topology(1, 4)).exchange.capacity_rows;
  };
  const std::int32_t worst = rows(0);
  CHECK(worst == 4032);  // 4 ranks x 1000 tokens for one expert
  CHECK(rows(1) == 64);
  CHECK(rows(100) == 128);
  CHECK(rows(128) == 128);
  CHECK(rows(kMost) == worst);
  // Ranks that differ in it are told so.
  CHECK(moe_plan_of(shape, Topology(1, 4)).signature() ==
        "moe max_tokens=1000 hidden=8 n=8 intermediate=0 experts=4 topk=2 bf16 capacity=2147483647");
}

TEST_CASE("moe plan: with the most tokens that a shape may have, every number has 32 bits") {
  for (const Topology& topology : kWorlds) {
    for (const std::int64_t topk : {1, 8, 1024}) {
      for (const std::int64_t experts : {std::int64_t{1024}, std::int64_t{1} << 20}) {
        const MoeShape least{.max_tokens = 1, .hidden = 1, .n = 1, .experts = experts, .topk = topk};
        if (!MoePlan::make(least, topology).ok()) continue;  // more counts than 2^31, by name below
        for (const bool shared : {false, true}) {
          MoeShape shape = least;
          if (shared) shape.intermediate = shape.shared_intermediate = 1;
          for (std::int64_t more = std::int64_t{1} << 30; more > 0; more /= 2) {
            shape.max_tokens += more;
            if (!MoePlan::make(shape, topology).ok()) shape.max_tokens -= more;
          }
          const ExpertExchangePlan exchange = moe_plan_of(shape, topology).exchange;
          const std::int64_t world = topology.world(), nodes = topology.nodes(), tokens = shape.max_tokens;
          CAPTURE(world);
          CAPTURE(tokens);
          CHECK(world * experts <= kMost);
          CHECK(world * tokens * topk + experts * (exchange.cut.unit - 1) <= kMost);
          CHECK(nodes * tokens * topk + (shared ? tokens : 0) <= kMost);
          CHECK(2 * (nodes - 1) * tokens <= kMost);
          CHECK(std::int64_t{exchange.pieces} * (nodes - 1) <= kMost);
          CHECK((std::int64_t{exchange.columns1} + exchange.columns2) * exchange.max_blocks() <= kMost);
          CHECK(exchange.bytes() < std::uint64_t{1} << 48);
          // And one token more is refused by name.
          ++shape.max_tokens;
          CHECK(
              holds(refused_text(shape, topology), "moe: max_tokens = " + std::to_string(shape.max_tokens)));
        }
      }
    }
  }
}

TEST_CASE("moe plan: operands of the shared expert are needed with one, and refused without") {
  MoeShape shape{.max_tokens = 4, .hidden = 8, .n = 8, .intermediate = 4, .experts = 4, .topk = 2};
  const std::byte some{};
  MoeArguments arguments{.w1 = &some, .w2 = &some};
  CHECK(moe_plan_of(shape, Topology(1, 1)).check(0, arguments).ok());
  const float factor = 1;
  arguments.shared_weights = &factor;
  CHECK(moe_plan_of(shape, Topology(1, 1)).check(0, arguments).text() ==
        "moe: shared_weights is given, but with shared_intermediate = 0 there is no shared expert");
  arguments.shared_weights = nullptr;
  arguments.shared_w1 = &some;
  CHECK(holds(moe_plan_of(shape, Topology(1, 1)).check(0, arguments).text(), "moe: shared_w1 is given"));
  shape.shared_intermediate = 4;
  const MoePlan plan = moe_plan_of(shape, Topology(1, 1));
  CHECK(plan.check(0, arguments).text() == "moe: shared_w2 is null");
  arguments.shared_w2 = &some;
  CHECK(plan.check(0, arguments).ok());
  arguments.shared_w1_up = &some;
  CHECK(plan.check(0, arguments).ok());
}

TEST_CASE("moe plan: impossible shapes are refused by field, value and limit") {
  const MoeShape good{.max_tokens = 4, .hidden = 8, .n = 8, .intermediate = 4, .experts = 4, .topk = 2};
  const auto text = [&](std::int64_t MoeShape::*field, std::int64_t value) {
    MoeShape shape = good;
    shape.*field = value;
    return refused_text(shape, Topology(2, 1));
  };
  CHECK(text(&MoeShape::max_tokens, 0) == "moe: max_tokens = 0, but it must be 1..1073741824");
  CHECK(text(&MoeShape::max_tokens, kMostRows + 1) ==
        "moe: max_tokens = 1073741825, but it must be 1..1073741824");
  CHECK(holds(text(&MoeShape::max_tokens, kMostRows), "must be 1..536870784 with topk = 2 on 2 ranks"));
  CHECK(text(&MoeShape::topk, 5) == "moe: topk = 5, but it must be 1..4");
  CHECK(text(&MoeShape::intermediate, -1) == "moe: intermediate = -1, but it must be 0..1073741823");
  CHECK(text(&MoeShape::shared_intermediate, -1) ==
        "moe: shared_intermediate = -1, but it must be 0..1073741823");
  MoeShape one_product = good;
  one_product.intermediate = 0;
  one_product.shared_intermediate = 8;
  CHECK(refused_text(one_product, Topology(2, 1)) ==
        "moe: shared_intermediate = 8, but it must be 0 with intermediate = 0");
  CHECK(text(&MoeShape::capacity, -1) == "moe: capacity = -1, but it must be 0..2147483647");
  CHECK(text(&MoeShape::experts, 0) == "moe: experts = 0, but it must be 1..1048576");
  MoeShape turned = good;
  turned.w_layout = Layout::kColumnMajor;
  CHECK(moe_plan_of(turned, Topology(2, 1)).signature() ==
        "moe max_tokens=4 hidden=8 n=8 intermediate=4 experts=4 topk=2 bf16 column-major");
  turned.shared_intermediate = 6;
  CHECK(holds(moe_plan_of(turned, Topology(2, 1)).signature(), " column-major shared=6"));
  turned.w_layout = static_cast<Layout>(2);
  CHECK(refused_text(turned, Topology(2, 1)) ==
        "moe: w_layout = 2, but it must be row-major (0) or column-major (1)");
  CHECK(holds(text(&MoeShape::hidden, std::int64_t{1} << 40), "moe: hidden = 1099511627776"));
  CHECK(holds(text(&MoeShape::hidden, std::int64_t{1} << 29), "must be 1..536870888"));
  CHECK(holds(text(&MoeShape::n, (std::int64_t{1} << 29) + 1), "must be 1..536870912"));
  MoeShape shape = good;
  shape.dtype = static_cast<DataType>(0);
  CHECK(holds(refused_text(shape, Topology(2, 1)), "dtype = 0"));
  shape = good;
  shape.experts = 1 << 20;
  shape.intermediate = (1 << 30) - 1;
  shape.max_tokens = 1 << 20;
  CHECK(holds(refused_text(shape, Topology(2, 1), {.tile_columns = (1 << 30) - 1}),
              "workspace stays below 2^48 bytes"));
  const MoeShape wide{.max_tokens = 1 << 24, .hidden = 1, .n = 1 << 20, .experts = 4, .topk = 1};
  CHECK(holds(refused_text(wide, Topology(1, 1), {.tile_columns = 1}), "columns of tiles"));
  shape = good;
  shape.experts = 1 << 20;
  CHECK(MoePlan::make(shape, Topology(512, 4)).status().text() ==
        "moe: experts = 1048576, but it must be 1..1048575");
  CHECK(holds(refused_text(good, Topology(1, 2), {.block_rows = 96}), "block_rows = 96"));
  CHECK(holds(refused_text(good, Topology(1, 2), {.pieces = 5}), "pieces = 5, but it must be 0..4"));
}

}  // namespace mkernel::kernels
