// The plan of a mixture of experts on the GPU: owners, blocks, places in the pools, orders of pushes and
// tokens. The protocol is simulated in simulation/moe_simulation_test.cc.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "kernels/base/types.h"
#include "kernels/plan/chunked_routing.h"
#include "kernels/plan/expert_blocks.h"
#include "kernels/plan/expert_routing.h"
#include "kernels/plan/expert_table.h"

namespace mkernel::kernels {
namespace {

using Ints = std::vector<std::int32_t>;

const ExpertOwners kOwners[] = {{1, 1}, {7, 1}, {8, 4}, {7, 3}, {3, 5}, {256, 8}, {61, 16}, {1024, 16}};

/// topk of a rank: distinct experts, those with low numbers more often.
struct Tokens {
  Tokens(std::int32_t experts, std::int32_t tokens, std::int32_t per_token, std::uint64_t seed)
      : count(tokens), topk(per_token), weights(static_cast<std::size_t>(tokens * per_token), 0.5F) {
    std::mt19937_64 random(seed);
    Ints all(static_cast<std::size_t>(experts));
    std::iota(all.begin(), all.end(), 0);
    const std::int32_t likely = seed % 2 == 0 ? experts : std::max(topk, experts / 3);
    for (std::int32_t token = 0; token < count; ++token) {
      std::shuffle(all.begin(), all.begin() + likely, random);
      chosen.insert(chosen.end(), all.begin(), all.begin() + topk);
    }
  }
  RoutedTokens view() const { return {chosen.data(), weights.data(), count, topk}; }

  std::int32_t count, topk;
  Ints chosen;
  std::vector<float> weights;
};

ChunkedRouting route(const RoutedTokens& tokens, const ExpertOwners& owners, std::int32_t rank,
                     std::int32_t chunks) {
  ChunkedRouting routing(tokens, {owners, rank, owners.world}, chunks);
  // Any order of chunks gives the same.
  for (std::int32_t chunk = chunks; chunk > 0; --chunk) routing.count(chunk - 1);
  for (std::int32_t chunk = chunks; chunk > 0; --chunk) routing.place(chunk - 1);
  return routing;
}

Ints pushed_entries(const ChunkedRouting& routing) {
  Ints entries;
  for (std::int32_t i = 0; i < routing.pushes(); ++i) entries.push_back(routing.push(i).entry);
  return entries;
}

}  // namespace

TEST_CASE("experts: owners have the ranges of block_range") {
  for (const ExpertOwners& owners : kOwners) {
    for (std::int32_t rank = 0; rank < owners.world; ++rank) {
      const Range range = block_range(owners.experts, owners.world, rank);
      CHECK(owners.first(rank) == range.begin);
      CHECK(owners.count(rank) == range.size());
      CHECK(owners.count(rank) <= owners.max_local());
      for (auto expert = static_cast<std::int32_t>(range.begin); expert < range.end; ++expert) {
        CHECK(owners.owner(expert) == rank);
        CHECK(owners.local(expert) == expert - range.begin);
      }
    }
  }
}

TEST_CASE("experts: blocks of 128 rows, the last one padded to 64") {
  const ExpertBlockRows cut;
  CHECK(cut.padded(0) == 0);
  CHECK(cut.padded(1) == 64);
  CHECK(cut.padded(64) == 64);
  CHECK(cut.padded(65) == 128);
  CHECK(cut.padded(129) == 192);
  CHECK(cut.blocks(0) == 0);
  CHECK(cut.blocks(128) == 1);
  CHECK(cut.blocks(129) == 2);
  CHECK(cut.max_blocks(192, 1) == 2);
  CHECK(cut.max_blocks(192, 2) == 2);
  CHECK(cut.max_blocks(192, 3) == 3);

  // Two ranks, three experts: rank 0 has expert 0, rank 1 has experts 1 and 2.
  const Ints counts{100, 0,   3,  //
                    30,  200, 1};
  const HostExpertTable made({3, 2}, cut, counts);
  const OwnedExperts first = made.view().of_rank(0), second = made.view().of_rank(1);
  CHECK(first.pool_rows() == 192);
  CHECK(first.all_blocks() == 2);
  CHECK(first.block(1).first_row == 128);
  CHECK(first.block(1).rows == 2);
  CHECK(second.pool_rows() == 256 + 64);
  CHECK(second.all_blocks() == 3);
  CHECK(second.block(1).expert == 0);
  CHECK(second.block(1).rows == 72);
  CHECK(second.block(2).expert == 1);
  CHECK(second.block(2).first_row == 256);
  CHECK(second.block(2).rows == 4);
  CHECK(second.block_of(1, 259) == 2);
  CHECK(made.view().first_row(2) == 256);
  CHECK(rows_of_sources({{3, 2}, 1, 2, {}}, counts.data(), 1, 2) == 3);
  CHECK(rows_of_sources({{3, 2}, 1, 1, {}}, counts.data(), 1, 2) == 1);  // on a node of its own

  CHECK(made.check_capacity(320).ok());
  CHECK(made.first_overflow(319) == 2);
  CHECK(made.first_overflow(128) == 0);
  CHECK(made.check_capacity(256).code() == StatusCode::kResourceExhausted);
  CHECK(made.check_capacity(256).text() ==
        "moe: expert 2 has 4 rows, with which rank 1 needs 320 rows with padding, but its capacity is 256");
}

TEST_CASE("experts: every pool row is written by one (source, token, j), blocks do not mix experts") {
  for (const ExpertOwners& owners : kOwners) {
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      CAPTURE(owners.experts);
      CAPTURE(seed);
      const std::int32_t topk = std::min(owners.experts, 3);
      std::vector<Tokens> tokens;
      std::vector<ChunkedRouting> routings;
      tokens.reserve(static_cast<std::size_t>(owners.world));
      Ints counts;
      for (std::int32_t rank = 0; rank < owners.world; ++rank) {
        tokens.emplace_back(owners.experts, rank % 3 == 1 ? 0 : 37 + 5 * rank, topk, seed + 10);
        routings.push_back(route(tokens.back().view(), owners, rank, 1 + rank % 4));
        const Ints mine = routings.back().counts();
        counts.insert(counts.end(), mine.begin(), mine.end());
      }
      const ExpertBlockRows cut{8, 4};
      const HostExpertTable table(owners, cut, counts);
      std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> source_at;  // by owner and pool row
      for (std::int32_t rank = 0; rank < owners.world; ++rank) {
        const ChunkedRouting& mine = routings[static_cast<std::size_t>(rank)];
        for (std::int32_t i = 0; i < mine.pushes(); ++i) {
          const auto push = mine.push(i);
          const PushOrder order{owners, rank, owners.world, {}};
          const PoolPlace place =
              pool_place(table.view(), order, counts.data(), rank, push.expert, push.index);
          const std::int32_t owner = place.owner, row = place.row, local = owners.local(push.expert);
          CHECK(source_at.emplace(std::pair{owner, row}, rank).second);
          const OwnedExperts owned = table.view().of_rank(owner);
          const auto block = owned.block(owned.block_of(local, row));
          CHECK(block.expert == local);
          CHECK(block.first_row <= row);
          CHECK(row < block.first_row + block.rows);
        }
      }
      std::size_t rows = 0;
      for (std::int32_t rank = 0; rank < owners.world; ++rank) {
        const OwnedExperts owned = table.view().of_rank(rank);
        CHECK(owned.all_blocks() <= cut.max_blocks(owned.pool_rows(), owned.experts));
        std::int32_t end = 0;
        for (std::int32_t b = 0; b < owned.all_blocks(); ++b) {
          const auto block = owned.block(b);
          CHECK(block.first_row >= end);
          end = block.first_row + cut.padded(block.rows);
          rows += static_cast<std::size_t>(block.rows);
          if (b > 0 && owned.expert_of(b - 1) == block.expert) continue;
          // Inside an expert the sources lie in rank order.
          for (std::int32_t row = block.first_row + 1; row < block.first_row + owned.rows[block.expert];
               ++row)
            CHECK(source_at.at({rank, row - 1}) <= source_at.at({rank, row}));
        }
        CHECK(end == owned.pool_rows());
      }
      CHECK(rows == source_at.size());
    }
  }
}

TEST_CASE("experts: pushes go by local expert, owner after owner, and are stable, whatever the chunks") {
  const ExpertOwners owners{5, 2};  // rank 0: 0, 1; rank 1: 2, 3, 4
  const PushOrder order{owners, 0, 2};
  Ints experts;
  for (std::int32_t step = 0; step < order.steps(); ++step) experts.push_back(order.expert(step));
  CHECK(experts == Ints{2, 0, 3, 1, 4, -1});
  const Ints topk{4, 0,  //
                  0, 2,  //
                  2, 4,  //
                  3, 2};
  const std::vector<float> weights(topk.size(), 1.0F);
  const RoutedTokens tokens{topk.data(), weights.data(), 4, 2};
  for (const std::int32_t chunks : {1, 2, 3, 4, 7}) {
    const ChunkedRouting routing = route(tokens, owners, 0, chunks);
    CHECK(routing.counts() == Ints{2, 0, 3, 1, 2});
    CHECK(pushed_entries(routing) == Ints{3, 4, 7, 1, 2, 6, 0, 5});
    CHECK(routing.push(2).expert == 2);
    CHECK(routing.push(2).index == 2);
    CHECK(routing.token_order() == Ints{1, 3, 0, 2});
  }

  for (const ExpertOwners& some : kOwners) {
    const Tokens many(some.experts, 200, std::min(some.experts, 4), 3);
    const std::int32_t rank = some.world / 2;
    const RoutedTokens routed = many.view();
    Ints expected(many.chosen.size()), by_token(200);
    std::iota(expected.begin(), expected.end(), 0);
    std::iota(by_token.begin(), by_token.end(), 0);
    const PushOrder some_order{some, rank, some.world};
    const auto step_of = [&](std::int32_t entry) { return some_order.step(routed.experts[entry]); };
    std::stable_sort(expected.begin(), expected.end(),
                     [&](std::int32_t a, std::int32_t b) { return step_of(a) < step_of(b); });
    std::stable_sort(by_token.begin(), by_token.end(), [&](std::int32_t a, std::int32_t b) {
      return last_local(routed, some, a) < last_local(routed, some, b);
    });
    for (const std::int32_t chunks : {1, 6, 13}) {
      const ChunkedRouting routing = route(routed, some, rank, chunks);
      CHECK(pushed_entries(routing) == expected);
      CHECK(routing.token_order() == by_token);
    }
    for (std::int32_t expert = 0; expert < some.experts; ++expert)
      CHECK(some_order.expert(some_order.step(expert)) == expert);
    // In any step, no two ranks push to one owner.
    for (std::int32_t step = 0; step < some_order.steps(); ++step) {
      std::set<std::int32_t> owners_of_step;
      std::int32_t pushing = 0;
      for (std::int32_t each = 0; each < some.world; ++each) {
        const std::int32_t expert = PushOrder{some, each, some.world}.expert(step);
        if (expert < 0) continue;
        ++pushing;
        owners_of_step.insert(some.owner(expert));
      }
      CHECK(static_cast<std::int32_t>(owners_of_step.size()) == pushing);
    }
  }
}

TEST_CASE(
    "experts: a token crosses to a node once, first experts first, and its sum returns by last experts") {
  const ExpertOwners owners{8, 4};  // two experts a rank, two ranks a node
  const Ints topk{7, 1,             // token 0: node 1 (local 1), own node
                  4, 5,             // token 1: node 1 (local 0 and 1)
                  0, 2,             // token 2: own node
                  6, 4};            // token 3: node 1 (local 0 twice)
  const std::vector<float> weights(topk.size(), 1.0F);
  const RoutedTokens tokens{topk.data(), weights.data(), 4, 2};
  const PushOrder order{owners, 1, 2};
  CHECK(order.node_turn(3) == 1);
  CHECK(order.node_turn(4) == 0);
  CHECK(order.rail_peer(0) == 3);
  for (const std::int32_t chunks : {1, 2, 3, 5}) {
    ChunkedRouting routing(tokens, order, chunks);
    for (std::int32_t chunk = 0; chunk < chunks; ++chunk) routing.count(chunk);
    for (std::int32_t chunk = chunks; chunk > 0; --chunk) routing.place(chunk - 1);
    CHECK(routing.crossings(0) == 3);
    Ints crossing, returning;
    for (std::int32_t i = 0; i < 3; ++i) crossing.push_back(routing.crossing(0, i));
    for (std::int32_t token = 0; token < 4; ++token) returning.push_back(routing.returning(0, token));
    CHECK(crossing == Ints{1, 3, 0});
    CHECK(returning == Ints{1, 2, -1, 0});
    CHECK(pushed_entries(routing) == Ints{4, 5, 1});
    CHECK(routing.entries(0, 3) == Ints{6, 7});
    CHECK(routing.row(7).index == 1);
    CHECK(routing.counts() == Ints{1, 1, 1, 0, 2, 1, 1, 1});
  }
}

TEST_CASE("experts: pushes and crossings go by where ranks live, whatever their numbers") {
  // Ranks 0, 2, 5 are on node 0, ranks 4, 1, 3 on node 1, in the order of their local indices.
  const Ints ranks{0, 2, 5, 4, 1, 3}, seats{0, 4, 1, 5, 3, 2};
  const ExpertOwners owners{13, 6};
  for (std::int32_t rank = 0; rank < 6; ++rank) {
    const PushOrder order{owners, rank, 3, {seats.data(), ranks.data()}};
    const std::int32_t seat = seats[static_cast<std::size_t>(rank)], node = seat / 3;
    CHECK(order.node(rank) == node);
    CHECK(order.neighbour(3) == rank);
    CHECK(order.neighbour(1) == ranks[static_cast<std::size_t>(node * 3 + (seat + 1) % 3)]);
    CHECK(order.rail_peer(0) == ranks[static_cast<std::size_t>((seat + 3) % 6)]);
    std::set<std::int32_t> pushed;
    for (std::int32_t step = 0; step < order.steps(); ++step) {
      const std::int32_t expert = order.expert(step);
      if (expert < 0) continue;
      CHECK(order.step(expert) == step);
      CHECK(order.node_turn(expert) == 1);
      pushed.insert(expert);
    }
    for (std::int32_t expert = 0; expert < 13; ++expert) {
      const bool here = seats[static_cast<std::size_t>(owners.owner(expert))] / 3 == node;
      CHECK(pushed.count(expert) == (here ? 1 : 0));
      CHECK(order.node_turn(expert) == (here ? 1 : 0));
    }
  }
}

TEST_CASE("experts: the first bad entry is named, whatever the chunks") {
  const ExpertOwners owners{8, 2};
  const auto problem = [&](const Ints& topk, const std::vector<float>& weights, std::int32_t chunks) {
    const RoutedTokens tokens{topk.data(), weights.data(), static_cast<std::int32_t>(topk.size()) / 2, 2};
    ChunkedRouting routing(tokens, {owners, 0, 2}, chunks);
    for (std::int32_t chunk = 0; chunk < chunks; ++chunk) routing.count(chunk);
    return routing.problem().to_status(3, owners.experts).text();
  };
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> good{1, 0, -1, kInfinity, 1, 1}, bad{1, 1, 1, kNan, kNan, 1};
  for (const std::int32_t chunks : {1, 2, 3}) {
    CHECK(problem({0, 1, 2, 3, 4, 5}, good, chunks).empty());
    CHECK(problem({0, 1, 2, 8, 4, 4}, good, chunks) == "moe: rank 3: topk[1, 1] = 8, but it must be 0..7");
    CHECK(problem({0, 1, 2, 3, 4, -1}, good, chunks) == "moe: rank 3: topk[2, 1] = -1, but it must be 0..7");
    CHECK(problem({0, 1, 2, 3, 4, 4}, good, chunks) ==
          "moe: rank 3: topk[2, 1] = 4, an expert that this token has already");
    CHECK(problem({0, 1, 2, 3, 4, 4}, bad, chunks) == "moe: rank 3: weights[1, 1] is not a number");
    CHECK(problem({0, 1, 2, 2, 4, 4}, bad, chunks) ==
          "moe: rank 3: topk[1, 1] = 2, an expert that this token has already");
  }
}

TEST_CASE("experts: a launch is refused for the lowest rank's problem, then for its rows") {
  const Ints counts{3, 0, 2, 9};
  const HostExpertTable table({2, 2}, {}, counts);
  std::vector<RoutingProblem> problems(2);
  CHECK(refusal_of(problems, table, 64).ok());
  CHECK(refusal_of(problems, table, 0).code() == StatusCode::kResourceExhausted);
  problems[1] = {RoutingProblem::kTwice, 4, 1, 1};
  CHECK(refusal_of(problems, table, 0).text() ==
        "moe: rank 1: topk[4, 1] = 1, an expert that this token has already");
  problems[0] = {RoutingProblem::kOutOfRange, 7, 0, 2};
  CHECK(refusal_of(problems, table, 0).text() == "moe: rank 0: topk[7, 0] = 2, but it must be 0..1");
}

}  // namespace mkernel::kernels
