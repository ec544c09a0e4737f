#include "tests/unit/kernels/plan/simulation/moe_time.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "tests/unit/kernels/plan/simulation/moe_time_launch.h"

namespace mkernel::test::moe_time {
namespace {

// Seconds that a Machine does not have; none was measured alone.
constexpr double kRouteStep = 3e-6;  // 32 entries of a warp: counted, and placed
constexpr double kMeet = 3e-6;       // of the dispatching CTAs
constexpr double kTable = 8e-6;      // from the counts of all to the table
constexpr int kStagedBetween = 2;    // rows: as moe_dispatch_gemm/crossing.cuh

}  // namespace

Times LaunchTime::play() {
  Times times;
  find_tables(times);
  for_ranks([&](std::int32_t index) { push(index); });
  for_ranks([&](std::int32_t index) { forward(index); });
  double waited = 0;
  for_ranks([&](std::int32_t index) {
    const Rank& mine = rank(index);
    times.pushed = std::max({times.pushed, mine.dispatched, max_of(mine.whole)});
    times.first_row = std::max(times.first_row, *std::min_element(mine.whole.begin(), mine.whole.end()));
    std::vector<double> clusters(static_cast<std::size_t>((of_.plan.ctas - of_.plan.moe.dispatch_ctas) / 2),
                                 machine_.launch);
    clusters.insert(clusters.end(),
                    static_cast<std::size_t>((of_.plan.moe.dispatch_ctas - of_.plan.summing_ctas) / 2),
                    mine.dispatched);
    waited += compute(index, std::move(clusters)) / static_cast<double>(ranks_.size());
    times.tiles = std::max(times.tiles, max_of(mine.cluster_ends));
    times.memory_bytes += memory_bytes_ / static_cast<double>(ranks_.size());
  });
  times.waited = waited;
  for_ranks([&](std::int32_t index) { sum_crossed(index); });
  for_ranks([&](std::int32_t index) { times.end = std::max(times.end, sum_own(index)); });
  times.end += machine_.last_stores;
  return times;
}

double LaunchTime::product_seconds() {
  double longest = 0;
  for_ranks([&](std::int32_t index) {
    std::fill(rank(index).whole.begin(), rank(index).whole.end(), 0.0);
    compute(index, std::vector<double>(static_cast<std::size_t>(of_.plan.ctas / 2), machine_.launch));
    longest = std::max(longest, max_of(rank(index).cluster_ends));
  });
  return longest;
}

void LaunchTime::route() {
  const std::int32_t experts = exchange_.owners.experts;
  std::vector<double> weight;
  for (std::int32_t expert = 0; expert < experts; ++expert)
    weight.push_back(of_.zipf ? std::pow(1.0 + expert, -1.2) : 1.0);
  for_ranks([&](std::int32_t index) {
    Rank& mine = rank(index);
    std::mt19937 random(static_cast<unsigned>(index) + 1);
    std::discrete_distribution<std::int32_t> draw(weight.begin(), weight.end());
    for (std::int32_t token = 0; token < exchange_.max_tokens; ++token) {
      const std::size_t first = mine.experts.size();
      while (mine.experts.size() < first + static_cast<std::size_t>(exchange_.topk)) {
        const std::int32_t expert = draw(random);
        if (std::find(mine.experts.begin() + static_cast<std::ptrdiff_t>(first), mine.experts.end(),
                      expert) == mine.experts.end())
          mine.experts.push_back(expert);
      }
    }
    mine.weights.assign(mine.experts.size(), 1.0F);
    const RoutedTokens routed{mine.experts.data(), mine.weights.data(), exchange_.max_tokens, exchange_.topk};
    mine.routing = std::make_unique<ChunkedRouting>(routed, exchange_.order(index), 1);
    mine.routing->count(0);
    mine.routing->place(0);
    const std::vector<std::int32_t> counts = mine.routing->counts();
    counts_.insert(counts_.end(), counts.begin(), counts.end());
  });
  table_ = std::make_unique<HostExpertTable>(exchange_.owners, exchange_.cut, counts_);
  find_tasks();
}

void LaunchTime::find_tasks() {
  for_ranks([&](std::int32_t index) {
    Rank& mine = rank(index);
    mine.owned = table_->view().of_rank(index);
    std::vector<std::int32_t> near;
    for (std::int32_t local = 0; local < mine.owned.experts; ++local) {
      near.push_back(rows_of_sources(exchange_.order(index), counts_.data(), exchange_.ranks_per_node,
                                     exchange_.owners.first(index) + local));
    }
    const auto pairs = [](std::int32_t columns) { return (columns + 1) / 2; };
    mine.tasks = std::make_unique<HostExpertTasks>(
        mine.owned, HostExpertSections(mine.owned, of_.plan.moe.sections, near.data()),
        pairs(exchange_.columns1), pairs(exchange_.columns2), of_.plan.moe.lead);
    mine.whole.assign(static_cast<std::size_t>(mine.owned.all_blocks()), 0.0);
    mine.origins.resize(static_cast<std::size_t>(mine.owned.pool_rows()));
    mine.finished.assign(static_cast<std::size_t>(exchange_.entries()), 0.0);
  });
}

void LaunchTime::find_tables(Times& times) {
  const double steps = std::ceil(static_cast<double>(exchange_.max_tokens) * exchange_.topk /
                                 (of_.plan.moe.dispatch_ctas * kWarps * 32));
  times.table = machine_.launch + steps * kRouteStep + kMeet + machine_.push_latency + kTable;
  if (exchange_.others() > 0) times.table += machine_.wire_latency + machine_.push_latency;
  for_ranks([&](std::int32_t index) { rank(index).table = times.table; });
}

void LaunchTime::arrive(const PoolPlace& place, const ExpertRowOrigin& origin, double time) {
  Rank& owner = rank(place.owner);
  at(owner.origins, place.row) = origin;
  double& whole = at(owner.whole, place.block);
  whole = std::max(whole, time + machine_.push_latency);
}
void LaunchTime::push(std::int32_t index) {
  Rank& mine = rank(index);
  const ChunkedRouting& routing = *mine.routing;
  const PushOrder order = exchange_.order(index);
  const std::int32_t first = routing.pushes_before(
      of_.plan.moe.sections.first_experts(exchange_.owners.max_local()) * exchange_.ranks_per_node);
  mine.dispatched = mine.table;
  std::vector<std::vector<double>> staged(static_cast<std::size_t>(order.others()));
  for (std::int32_t row = 0; row < exchange_.max_tokens; ++row) {
    for (std::int32_t turn = 0; turn < order.others(); ++turn) {
      if (row >= routing.crossings(turn)) continue;
      mine.dispatched += static_cast<double>(exchange_.crossing_bytes()) / copy_rate();
      at(staged, turn).push_back(mine.dispatched);
      push_before(index, std::min(first, mine.pushed + kPushUnitRows / kStagedBetween));
    }
  }
  for (std::int32_t turn = 0; turn < order.others(); ++turn)
    rank(order.rail_peer(turn)).rows_arrived.resize(static_cast<std::size_t>(order.others()));
  put(
      mine, exchange_.crossing_bytes(), [&](std::int32_t turn) { return routing.crossings(turn); },
      [&](std::int32_t turn, std::int32_t row) { return at(at(staged, turn), row); },
      [&](std::int32_t turn, double time) {
        at(rank(order.rail_peer(turn)).rows_arrived, order.as_seen_from(turn)).push_back(time);
      });
  push_before(index, first);
}

void LaunchTime::push_before(std::int32_t index, std::int32_t end, double until) {
  Rank& mine = rank(index);
  const auto bytes = static_cast<double>(exchange_.row_bytes);
  for (; mine.pushed < end && mine.dispatched < until; ++mine.pushed) {
    const ChunkedRouting::Push row = mine.routing->push(mine.pushed);
    const PoolPlace place =
        pool_place(table_->view(), exchange_.order(index), counts_.data(), index, row.expert, row.index);
    const double sent = place.owner != index && of_.share == 1
                            ? mine.links.serve(mine.dispatched, bytes / machine_.links_store)
                            : 0;
    mine.dispatched = std::max(mine.dispatched + bytes / copy_rate(), sent);
    arrive(place, {index, row.entry}, mine.dispatched);
  }
}

void LaunchTime::forward(std::int32_t index) {
  Rank& mine = rank(index);
  const PushOrder order = exchange_.order(index);
  const std::int32_t pushes = mine.routing->pushes();
  double& now = mine.dispatched;
  for (std::int32_t row = 0; row < exchange_.max_tokens; ++row) {
    for (std::int32_t turn = 0; turn < order.others(); ++turn) {
      const std::int32_t source = order.rail_peer(turn), seen = order.as_seen_from(turn);
      const ChunkedRouting& routing = *rank(source).routing;
      if (row >= routing.crossings(seen)) continue;
      const std::int32_t piece = exchange_.piece_of(row, routing.crossings(seen));
      const double arrived = at(at(mine.rows_arrived, turn), piece);
      push_before(index, pushes, arrived);
      now = std::max(now, arrived);
      const std::int32_t token = routing.crossing(seen, row);
      std::int32_t entry = exchange_.crossed_entry(turn, routing.returning(seen, token));
      for (const std::int32_t of : routing.entries(seen, token)) {
        now += static_cast<double>(exchange_.row_bytes) / copy_rate();
        const ChunkedRouting::Push each = routing.row(of);
        arrive(pool_place(table_->view(), order, counts_.data(), source, each.expert, each.index),
               {index, entry++}, now);
      }
    }
  }
  push_before(index, pushes);
}

Times times(const Case& of) {
  return LaunchTime(of).play();
}

double product_seconds(const Case& of) {
  return LaunchTime(of).product_seconds();
}

}  // namespace mkernel::test::moe_time
