// The mixture-of-experts layer at work: one function per role and what the roles share. README.md has the
// counts and says why a launch needs no credits.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/base/signal.h"
#include "kernels/cpu/comm/endpoint.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/sync/launch.h"
#include "kernels/ops/moe_dispatch_gemm/experts.h"
#include "kernels/ops/moe_dispatch_gemm/plan.h"
#include "kernels/ops/moe_dispatch_gemm/routing.h"

namespace mkernel::kernels {

/// The metadata of one source as a rank of the node reads it.
struct MoeMeta {
  std::int64_t rows = 0;
  std::uint64_t first_row = 0;  ///< rows of the launches before; valid when rows > 0
  const std::int32_t* experts = nullptr;
  const float* weights = nullptr;
};

/// One rank's end of the exchange. Everything it refers to outlives it. One launch at a time.
class Moe {
 public:
  Moe(const MoePlan& plan, const GroupView& group, const SymmetricView& workspace, Endpoint& endpoint);
  ~Moe();

  /// Once per launch, before its roles start.
  void begin();

  /// inter_send: packs the rows for each node, metadata first, the own node last.
  Status dispatch(const Launch& launch, const MoeArguments& arguments, const SendLists& lists);
  /// inter_recv: shows the node what has arrived from the other nodes.
  Status receive(const Launch& launch);
  /// intra_comm: turns the metadata of every source, in the order of arrival, into work for the experts.
  Status route(const Launch& launch);
  /// compute: products of this rank's experts, then their weighted sums by row.
  Status compute(const Launch& launch, const MoeArguments& arguments, ExpertLayer& layer, int thread);
  /// inter_reduce: adds the sums of the node's ranks and returns them to the sources on other nodes.
  Status reduce(const Launch& launch);
  /// combine: adds the sums of the nodes and writes y. Runs after dispatch(), on its thread.
  Status combine(const Launch& launch, const MoeArguments& arguments, const SendLists& lists);

 private:
  struct Source;  // work of one source in this launch

  SignalWord& word(std::uint32_t local, std::uint64_t offset) const;
  std::uint32_t node_rank(std::uint32_t local) const { return plan_.topology().rank_at(node_, local); }
  Status wait_partials(const Launch& launch, std::uint32_t node, std::uint64_t launches,
                       const char* role) const;
  MoeMeta meta(const Launch& launch, std::uint32_t node, std::uint32_t local) const;
  void sum_row(std::uint32_t node, std::uint32_t source_local, std::int64_t row, const std::int32_t* experts,
               std::vector<std::uint32_t>& ranks, float* out) const;

  void pack_meta(const Launch& launch, const MoeArguments& arguments, std::uint32_t node,
                 const std::vector<std::int64_t>& list, std::byte* area) const;
  void pack_rows(const MoeArguments& arguments, const std::vector<std::int64_t>& list, Range rows,
                 std::byte* area) const;
  Status dispatch_remote(const Launch& launch, const MoeArguments& arguments, std::uint32_t node,
                         const std::vector<std::int64_t>& list);
  void dispatch_local(const Launch& launch, const MoeArguments& arguments,
                      const std::vector<std::int64_t>& list);

  struct Incoming;  // what has arrived from one node in this launch
  bool take_arrivals(const Launch& launch, Incoming& from);

  bool try_route(const Launch& launch, std::uint32_t node, std::uint32_t local);
  Status run_blocks(const Launch& launch, Source& source, ExpertLayer& layer, ExpertScratch& scratch);
  Status run_sums(const Launch& launch, Source& source);
  Status return_sums(const Launch& launch, std::uint32_t node, std::vector<float>& sum);
  Status add_remote(const Launch& launch, std::uint32_t node, std::int64_t row, std::vector<float>& widened,
                    float* sum) const;
  Status wait_answers(const Launch& launch, const SendLists& lists);

  const MoePlan& plan_;
  const SymmetricView& workspace_;
  Endpoint& endpoint_;
  const std::uint32_t rank_, node_, local_;

  // Over all launches, by node. Each is touched by one role only.
  std::vector<std::uint64_t> rows_sent_;      // dispatch
  std::vector<std::uint64_t> returns_taken_;  // combine
  std::vector<std::uint64_t> puts_taken_;     // receive

  // Of this launch.
  std::vector<std::unique_ptr<Source>> sources_;  // in the order of arrival
  SignalWord routed_{};                           // sources_ that are ready for compute
  SignalWord widened_{};  // compute threads that have widened their part of the weights
};

}  // namespace mkernel::kernels
