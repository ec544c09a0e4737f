// Ring attention at work: one function per role and what the roles share. See README.md for the counts.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/base/signal.h"
#include "kernels/cpu/attention/blockwise.h"
#include "kernels/cpu/comm/endpoint.h"
#include "kernels/cpu/sync/launch.h"
#include "kernels/ops/ring_attention/plan.h"

namespace mkernel::kernels {

/// One rank's end of the ring. Everything it refers to outlives it. One launch at a time.
class RingAttention {
 public:
  RingAttention(const RingAttentionPlan& plan, const GroupView& group, const SymmetricView& workspace,
                Endpoint& endpoint);

  /// Once per launch, before its roles start.
  void begin(int compute_threads);

  /// intra_comm: copies this rank's keys and values into its slot of step 0, where the node sees them.
  Status load(const Launch& launch, const AttentionArguments& arguments);
  /// inter_send: passes on what the slots hold, page by page, to the next node.
  Status send(const Launch& launch);
  /// inter_recv: lets the previous node write when a slot is free, shows the node the pages that arrived.
  Status receive(const Launch& launch);
  /// compute: attends with every `threads`-th tile, from `thread` on, to all blocks in the order of the plan.
  Status compute(const Launch& launch, const AttentionArguments& arguments, int thread);

 private:
  std::uint64_t global_step(const Launch& launch, std::uint32_t step) const {
    return launch.epoch * plan_.steps() + step;
  }
  std::uint64_t slot_offset(const Launch& launch, std::uint32_t step) const {
    return plan_.workspace().slot(global_step(launch, step) % 2);
  }
  SignalWord& word(std::uint32_t local, std::uint64_t offset) const {
    return *reinterpret_cast<SignalWord*>(workspace_.node[local] + offset);
  }
  Status wait_slot_free(const Launch& launch, std::uint32_t step, const char* role) const;
  Status wait_page(const Launch& launch, std::uint32_t holder, std::uint32_t step, std::uint64_t page,
                   const char* role) const;
  Status attend_block(const Launch& launch, std::uint32_t step, std::uint32_t holder,
                      const std::vector<QueryTile>& tiles, std::vector<AttentionTile>& states,
                      AttentionScratch& scratch) const;
  void finish_block(const Launch& launch, std::uint32_t step, std::uint32_t turn);

  const RingAttentionPlan& plan_;
  const SymmetricView& workspace_;
  Endpoint& endpoint_;
  const std::uint32_t rank_;
  const std::uint32_t local_;
  int compute_threads_ = 1;
  /// Compute threads that are done with a block, by step and turn, in this launch.
  std::unique_ptr<std::atomic<int>[]> done_;
};

}  // namespace mkernel::kernels
