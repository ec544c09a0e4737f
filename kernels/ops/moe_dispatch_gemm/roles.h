// The roles of one launch of the mixture-of-experts layer on the cpu executor: threads play the CTAs and
// warps of the plan. README.md has the words that they wait for; plan/expert_exchange_plan.h says why nothing
// is overwritten too early and nobody is stuck.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/base/signal.h"
#include "kernels/base/views.h"
#include "kernels/cpu/comm/endpoint.h"
#include "kernels/cpu/sync/launch.h"
#include "kernels/ops/moe_dispatch_gemm/experts.h"
#include "kernels/ops/moe_dispatch_gemm/plan.h"
#include "kernels/plan/chunked_routing.h"
#include "kernels/plan/expert_routing.h"
#include "kernels/plan/expert_table.h"
#include "kernels/plan/expert_tasks.h"
#include "kernels/plan/host_expert_tasks.h"
#include "kernels/plan/layer_tasks.h"

namespace mkernel::kernels {

/// What the roles of one launch of one rank share. Everything it refers to outlives it, and it outlives the
/// roles.
class MoeLaunch {
 public:
  MoeLaunch(const MoePlan& plan, const SymmetricView& workspace, Endpoint& endpoint, ExpertLayer& layer,
            const MoeArguments& arguments, const Launch& launch);
  ~MoeLaunch();

  /// intra_comm: dispatching CTA `number` routes its chunk of the tokens and sends counts; number 0 builds
  /// the table. Then all of them stage, push and forward rows, and sum.
  Status dispatch(std::int32_t number);
  /// inter_recv, over several nodes: hands the counts of this rank's rail peers to its node.
  Status forward_counts();
  /// inter_send, over several nodes: puts the counts, then the rows, then the sums of what crossed. Ends when
  /// their sources may be overwritten.
  Status send();
  /// compute: tiles of both products in the order of the plan, then sums.
  Status compute(int thread);

  /// Once all roles have ended well: OK, or why every rank refused the launch.
  const Status& refusal() const { return refusal_; }

 private:
  struct Counts;
  struct Work;

  // Words, in the memory of a rank of this node.
  std::byte* memory(std::int32_t rank) const {
    return workspace_.node[topology().local_of(static_cast<std::uint32_t>(rank))];
  }
  std::uint64_t& word(std::int32_t rank, std::uint64_t at) const {
    return *reinterpret_cast<std::uint64_t*>(memory(rank) + at);
  }
  /// `stage`: Launch::at_stage().
  Status wait(const std::uint64_t& word, std::uint64_t expected, const WaitSite& site, int stage) const {
    return wait_at_least(word, expected, site, launch_.at_stage(stage));
  }
  Status wait_table(const char* role) const;
  Status wait_placed(const char* role) const;
  const Topology& topology() const { return plan_.topology; }
  std::uint64_t stamp() const { return ExpertExchangePlan::stamp(launch_.epoch); }

  // dispatch.cc
  Status route(std::int32_t number);
  void send_counts(std::int32_t to) const;
  Status wait_counts() const;
  Status build_table();
  Counts read_counts() const;
  void add_lacking_rows(std::int32_t number) const;
  void push();
  void write_row(const PoolPlace& place, const ExpertRowOrigin& origin, const std::byte* row,
                 float weight) const;
  void signal_rows(std::span<const PoolPlace> places) const;
  PoolPlace place_of(std::int32_t source, std::int32_t expert, std::int32_t index) const;

  // crossing.cc
  void stage();
  void stage_row(std::int32_t turn, std::int32_t row) const;
  Status forward();
  void forward_row(std::int32_t turn, std::int32_t row);
  Status put_counts();
  Status put_pieces(std::uint32_t lane);
  Status put_piece(std::uint32_t lane, std::int32_t turn, std::int32_t piece);

  // compute.cc
  Status compute_tiles(WorkCounter& work, const LayerTasks& tasks, std::int32_t first,
                       const ExpertScratch& scratch);
  Status first_tile(const ExpertTasks::Task& task, const ExpertScratch& scratch) const;
  Status second_tile(const ExpertTasks::Task& task, const ExpertScratch& scratch) const;
  void store_hidden(const ExpertTasks::Task& task, const ExpertScratch& scratch) const;
  void store_finished(const ExpertTasks::Task& task, const ExpertScratch& scratch) const;
  // Of a task, which may be one of the shared expert: the rows are of the pool then, or tokens.
  OwnedExperts::Block rows_of(const ExpertTasks::Task& task) const;
  std::uint64_t& hidden_word(const ExpertTasks::Task& task, std::int32_t column) const;
  std::byte* hidden_row(const ExpertTasks::Task& task, std::int32_t row) const;
  ExpertRowOrigin origin(const ExpertTasks::Task& task, std::int32_t row) const;

  // sum.cc
  struct Sum;
  Status sum();
  Status sum_crossed(std::int32_t turn, std::int32_t returning, Sum& sum) const;
  Status sum_own(std::int32_t token, Sum& sum) const;
  float weight_of_sum(float weight) const;
  /// Of an expert of `owner`.
  Status add_finished(std::int32_t entry, std::int32_t owner, float weight, Sum& sum) const;

  const MoePlan& plan_;
  const ExpertExchangePlan& exchange_;
  const SymmetricView& workspace_;
  Endpoint& endpoint_;
  ExpertLayer& layer_;
  const MoeArguments& arguments_;
  const Launch& launch_;
  const std::int32_t me_;
  const PushOrder order_;

  // Of this rank alone. In memory of a GPU these words would count on from launch to launch.
  ChunkedRouting routing_;
  SignalWord chunks_{};         ///< that are counted
  SignalWord placed_{};         ///< chunks
  SignalWord tabled_{};         ///< 1: work_ or refusal_ is there
  SignalWord widened_{};        ///< compute threads that have widened their part of the weights
  WorkCounter early_;           ///< LayerTasks::early()
  std::unique_ptr<Work> work_;  ///< null: the launch is refused
  Status refusal_;
};

/// Counts of all ranks, as the table is built from them.
struct MoeLaunch::Counts {
  std::vector<std::int32_t> rows;  ///< [world][experts]
  std::vector<RoutingProblem> problems;
  std::vector<std::int32_t> crossed;  ///< by node turn: tokens that cross from the rail peer there
};

/// What the threads of a launch that is not refused take their work from.
struct MoeLaunch::Work {
  Work(const MoePlan& plan, std::int32_t rank, const ChunkedRouting& routing, std::int32_t tokens,
       Counts read, HostExpertTable built);

  const Counts counts;
  const HostExpertTable host_table;
  const ExpertTable table;
  const OwnedExperts mine;
  const HostExpertTasks expert_tasks;
  const LayerTasks tasks;
  std::vector<std::int32_t> crossing;  ///< by node turn: own tokens that cross there
  /// [node turn][number of returning]: the row of crossing_in[]; written before forwarded[].
  std::vector<std::vector<std::int32_t>> crossed_row;
  WorkCounter staging, pushing, forwarding, tiles, crossed_sums, own_sums;
};

}  // namespace mkernel::kernels
