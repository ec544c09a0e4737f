// Tiles and sums of moe_time.h.
#include <algorithm>
#include <functional>
#include <memory>
#include <queue>
#include <utility>
#include <vector>

#include "kernels/ops/moe_dispatch_gemm/parameters.h"
#include "tests/unit/kernels/plan/simulation/moe_time_launch.h"

namespace mkernel::test::moe_time {
namespace {

// Seconds that a Machine does not have; none was measured alone.
constexpr double kSumStart = 3e-6;      // a unit of summing: claimed, looked up, waited for
constexpr double kTileHandOver = 1e-6;  // from the last store of a tile to the task that waits for it
constexpr double kL2Bytes = 30e6;       // of 50 MB, what stays

}  // namespace

double LaunchTime::compute(std::int32_t index, std::vector<double> clusters) {
  Rank& mine = rank(index);
  const ExpertTasks& tasks = mine.tasks->tasks;
  PanelCache cache(kL2Bytes * of_.share);
  mine.memory = std::make_unique<MemoryTime>(memory_rate_);
  const std::vector<double> never(mine.whole.size(), 0.0);
  std::vector<double> hidden = never, stored = never;
  // By when a cluster takes its next task: when it begins the one before.
  using Cluster = std::pair<double, std::size_t>;
  std::priority_queue<Cluster, std::vector<Cluster>, std::greater<>> next;
  for (std::size_t i = 0; i < clusters.size(); ++i) next.emplace(clusters[i], i);
  double waited = 0;
  for (std::int32_t number = 0; number < tasks.tasks(); ++number) {
    const std::size_t cluster = next.top().second;
    next.pop();
    const ExpertTasks::Task task = tasks.task(number);
    TilePair pair = tile_pair(task.block - task.first_block, task.blocks, task.column);
    pair.block += task.first_block;
    const auto first = static_cast<std::size_t>(pair.block),
               second = static_cast<std::size_t>(pair.second_block());
    const std::vector<double>& inputs = task.second ? hidden : mine.whole;
    const double ready = std::max(inputs[first], inputs[second]);
    waited += std::max(0.0, ready - clusters[cluster]);
    const double begin = std::max(clusters[cluster], ready);
    const double end =
        std::max(begin + task_seconds(task.second), mine.memory->read(begin, load(cache, task, pair)));
    clusters[cluster] = end;
    next.emplace(begin, cluster);
    std::vector<double>& outputs = exchange_.columns2 > 0 && !task.second ? hidden : stored;
    for (const std::size_t block : {first, second})
      outputs[block] = std::max(outputs[block], end + kTileHandOver);
  }
  finish(index, stored);
  memory_bytes_ = cache.missed();
  mine.cluster_ends = std::move(clusters);
  return waited / static_cast<double>(mine.cluster_ends.size());
}

/// Rows are finished with their blocks.
void LaunchTime::finish(std::int32_t index, const std::vector<double>& stored) {
  const Rank& mine = rank(index);
  for (std::int32_t block = 0; block < mine.owned.all_blocks(); ++block) {
    const OwnedExperts::Block rows = mine.owned.block(block);
    for (std::int32_t row = rows.first_row; row < rows.first_row + rows.rows; ++row) {
      const ExpertRowOrigin& origin = at(mine.origins, row);
      at(rank(origin.rank).finished, origin.entry) = at(stored, block) + machine_.push_latency;
    }
  }
}

double LaunchTime::load(PanelCache& cache, const ExpertTasks::Task& task, const TilePair& pair) const {
  const std::uint64_t product = task.second ? 1 : 0;
  const double bytes = 2.0 * static_cast<double>(inner(task.second));
  double missed = 0;
  const auto rows = [&](std::int32_t block) {
    missed += cache.load({product, static_cast<std::uint64_t>(block), 0}, bytes * tile_rows(kMoeTile));
  };
  const auto columns = [&](std::int32_t column) {
    missed +=
        cache.load({2 + product, static_cast<std::uint64_t>(task.expert), static_cast<std::uint64_t>(column)},
                   bytes * tile_columns(kMoeTile));
  };
  rows(pair.block);
  columns(pair.column);
  if (pair.side_by_side) {
    columns(pair.second_column());
  } else {
    rows(pair.second_block());
  }
  return missed;
}

void LaunchTime::open_sums(Rank& mine) {
  const double each = kMoeSumBytes / machine_.memory_latency;
  for (std::int32_t warp = 0; warp < of_.plan.summing_ctas * kWarps; ++warp)
    mine.summing.push({mine.dispatched, of_.sum_rows * each});
  for (const double end : mine.cluster_ends) {
    if (of_.sums_beside) mine.summing.push({0, 4 * each});
    for (int warp = 0; warp < 16; ++warp) mine.summing.push({end, of_.sum_rows * each});
  }
}
double LaunchTime::sum(Rank& mine, double ready, double bytes) {
  Warp warp = mine.summing.top();
  mine.summing.pop();
  const double begin = std::max(warp.free, ready) + kSumStart;
  warp.free = std::max(begin + bytes / warp.rate, mine.memory->read(begin, bytes));
  mine.summing.push(warp);
  return warp.free;
}

/// By number of returning: rows of the tokens that cross from a rank, which sees their node at that turn.
std::vector<std::int32_t> LaunchTime::crossed_rows(std::int32_t source, std::int32_t seen) {
  const ChunkedRouting& routing = *rank(source).routing;
  std::vector<std::int32_t> rows(static_cast<std::size_t>(routing.crossings(seen)));
  for (std::int32_t row = 0; row < routing.crossings(seen); ++row) {
    const std::int32_t token = routing.crossing(seen, row);
    at(rows, routing.returning(seen, token)) = static_cast<std::int32_t>(routing.entries(seen, token).size());
  }
  return rows;
}

void LaunchTime::sum_crossed(std::int32_t index) {
  Rank& mine = rank(index);
  open_sums(mine);
  const PushOrder order = exchange_.order(index);
  std::vector<std::vector<double>> summed(static_cast<std::size_t>(order.others()));
  const auto crossed = [&](std::int32_t turn) {
    return rank(order.rail_peer(turn)).routing->crossings(order.as_seen_from(turn));
  };
  std::vector<std::vector<std::int32_t>> rows;  // by turn and number of returning
  for (std::int32_t turn = 0; turn < order.others(); ++turn) {
    rows.push_back(crossed_rows(order.rail_peer(turn), order.as_seen_from(turn)));
    rank(order.rail_peer(turn)).sums_arrived.resize(summed.size());
  }
  for (std::int32_t returning = 0; returning < exchange_.max_tokens; ++returning) {
    for (std::int32_t turn = 0; turn < order.others(); ++turn) {
      if (returning >= crossed(turn)) continue;
      const std::int32_t entries = at(at(rows, turn), returning);
      const auto first = mine.finished.begin() + exchange_.crossed_entry(turn, returning);
      const double ready = *std::max_element(first, first + entries);
      at(summed, turn).push_back(sum(mine, ready, static_cast<double>(exchange_.finished_bytes) * entries));
    }
  }
  put(
      mine, exchange_.finished_bytes, crossed,
      [&](std::int32_t turn, std::int32_t row) { return at(at(summed, turn), row); },
      [&](std::int32_t turn, double time) {
        at(rank(order.rail_peer(turn)).sums_arrived, order.as_seen_from(turn)).push_back(time);
      });
}

double LaunchTime::sum_own(std::int32_t index) {
  Rank& mine = rank(index);
  const ChunkedRouting& routing = *mine.routing;
  double end = 0;
  for (const std::int32_t token : routing.token_order()) {
    double ready = 0;
    std::size_t rows = 0;
    for (const std::int32_t entry : routing.entries(exchange_.others(), token)) {
      ready = std::max(ready, at(mine.finished, entry));
      ++rows;
    }
    for (std::int32_t turn = 0; turn < exchange_.others(); ++turn) {
      const std::int32_t returning = routing.returning(turn, token);
      if (returning < 0) continue;
      ++rows;
      const std::int32_t piece = exchange_.piece_of(returning, routing.crossings(turn));
      ready = std::max(ready, at(at(mine.sums_arrived, turn), piece));
    }
    const std::int32_t parts = of_.plan.sum_parts;
    for (std::int32_t part = 0; part < parts; ++part)
      end = std::max(end, sum(mine, ready, static_cast<double>(exchange_.finished_bytes * rows) / parts));
  }
  return end;
}

}  // namespace mkernel::test::moe_time
