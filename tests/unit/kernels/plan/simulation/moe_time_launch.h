// Inside of moe_time.h: a launch, step by step.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <queue>
#include <vector>

#include "kernels/ops/moe_dispatch_gemm/kernel.h"
#include "kernels/plan/chunked_routing.h"
#include "kernels/plan/expert_table.h"
#include "kernels/plan/host_expert_tasks.h"
#include "kernels/plan/tile_pairs.h"
#include "tests/unit/kernels/plan/simulation/machine_time.h"
#include "tests/unit/kernels/plan/simulation/moe_time.h"

namespace mkernel::test::moe_time {

using namespace mkernel::kernels;

inline constexpr int kWarps = 12;  // of a CTA, of which eight multiply

template <class Vector>
auto& at(Vector& of, std::int32_t index) {
  return of[static_cast<std::size_t>(index)];
}

/// A warp that sums, by when it has time.
struct Warp {
  double free, rate;
  bool operator>(const Warp& other) const { return free > other.free; }
};
using Warps = std::priority_queue<Warp, std::vector<Warp>, std::greater<>>;

struct Rank {
  std::vector<std::int32_t> experts;  ///< of its entries
  std::vector<float> weights;
  std::unique_ptr<ChunkedRouting> routing;
  OwnedExperts owned;
  std::unique_ptr<HostExpertTasks> tasks;
  std::vector<double> whole;                                    ///< by block: all its rows are here
  std::vector<ExpertRowOrigin> origins;                         ///< by row of the pool
  std::vector<double> finished;                                 ///< by entry
  std::vector<std::vector<double>> rows_arrived, sums_arrived;  ///< by node turn and piece
  std::vector<double> cluster_ends;
  Warps summing;
  Server wire, links;  ///< to other nodes, to the other ranks of this one
  std::unique_ptr<MemoryTime> memory;
  std::int32_t pushed = 0;  ///< rows
  double table = 0, dispatched = 0;
};

class LaunchTime {
 public:
  explicit LaunchTime(const Case& of)
      : of_(of),
        exchange_(of.plan.moe.exchange),
        machine_(of.plan.machine),
        memory_rate_(machine_.memory_bytes * of.share),
        ranks_(static_cast<std::size_t>(exchange_.owners.world)) {
    route();
  }

  Times play();
  double product_seconds();

 private:
  template <class Work>
  void for_ranks(const Work& work) {
    for (std::int32_t index = 0; index < exchange_.owners.world; ++index) work(index);
  }
  Rank& rank(std::int32_t index) { return at(ranks_, index); }
  static double max_of(const std::vector<double>& of) {
    return of.empty() ? 0 : *std::max_element(of.begin(), of.end());
  }

  // moe_time.cc
  void route();
  void find_tasks();
  void find_tables(Times& times);
  void arrive(const PoolPlace& place, const ExpertRowOrigin& origin, double time);
  /// Stages what crosses, and pushes the rows that come before that.
  void push(std::int32_t index);
  /// The next rows that the rank pushes, before row `end` and time `until`.
  void push_before(std::int32_t index, std::int32_t end,
                   double until = std::numeric_limits<double>::infinity());
  /// What has crossed, with the other rows while it is on its way.
  void forward(std::int32_t index);

  // moe_time_compute.cc
  /// Clusters that are free from these times on: what each has waited for rows, in the mean.
  double compute(std::int32_t index, std::vector<double> clusters);
  /// Bytes that come from memory.
  double load(PanelCache& cache, const ExpertTasks::Task& task, const TilePair& pair) const;
  void finish(std::int32_t index, const std::vector<double>& stored);
  void open_sums(Rank& mine);
  /// One unit, by the warp that has time first: when it is done.
  double sum(Rank& mine, double ready, double bytes);
  void sum_crossed(std::int32_t index);
  double sum_own(std::int32_t index);
  std::vector<std::int32_t> crossed_rows(std::int32_t source, std::int32_t seen);

  /// Bytes a second that the dispatching CTAs copy.
  double copy_rate() const {
    return std::min(of_.plan.moe.dispatch_ctas * machine_.push_bytes, memory_rate_ / 2);
  }
  /// By node turn what is sent when `ready(turn, row)`, in pieces; calls arrived(turn) for each.
  template <class Ready, class Rows, class Arrived>
  void put(Rank& from, std::uint64_t bytes, const Rows& rows, const Ready& ready, const Arrived& arrived) {
    for (std::int32_t piece = 0; piece < exchange_.pieces; ++piece) {
      for (std::int32_t turn = 0; turn < exchange_.others(); ++turn) {
        const std::int32_t begin = exchange_.piece_begin(piece, rows(turn));
        const std::int32_t end = exchange_.piece_begin(piece + 1, rows(turn));
        double all = 0;
        for (std::int32_t row = begin; row < end; ++row) all = std::max(all, ready(turn, row));
        const double seconds = static_cast<double>(bytes) * (end - begin) / machine_.nic;
        arrived(turn, from.wire.serve(all, seconds) + machine_.wire_latency);
      }
    }
  }

  std::int64_t inner(bool second) const {
    return second ? of_.plan.moe.shape.intermediate : of_.plan.moe.shape.hidden;
  }
  double task_seconds(bool second) const {
    return 2.0 * tile_rows(kMoeTile) * tile_columns(kMoeTile) * static_cast<double>(inner(second)) /
           machine_.product_operations;
  }

  const Case& of_;
  const ExpertExchangePlan& exchange_;
  const Machine& machine_;
  const double memory_rate_;
  std::vector<Rank> ranks_;
  std::vector<std::int32_t> counts_;
  std::unique_ptr<HostExpertTable> table_;
  double memory_bytes_ = 0;
};

}  // namespace mkernel::test::moe_time
