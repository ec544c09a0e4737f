// The two-level reduce-scatter at work: role functions and what they share. See README.md for the counts.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/base/views.h"
#include "kernels/cpu/comm/endpoint.h"
#include "kernels/cpu/sync/launch.h"
#include "kernels/plan/reduce_plan.h"
#include "kernels/plan/topology.h"

namespace mkernel::kernels {

/// One rank's end of the reduction. Uses lanes `lane` (node partials) and `lane` + 1 (credits). Everything
/// it refers to outlives it.
class Reduce {
 public:
  Reduce(const ReducePlan& plan, const Topology& topology, DataType dtype, const GroupView& group,
         const SymmetricView& workspace, Endpoint& endpoint, std::uint32_t lane);

  const ReducePlan& plan() const { return plan_; }
  const std::vector<OwnedTile>& compute_order() const { return compute_order_; }

  /// compute: the slot at the node's reducer for this rank's part of `tile`, dense rows of the tile's
  /// columns, fp32. Waits while the window is full.
  Result<float*> acquire_slot(const Launch& launch, OwnedTile tile) const;
  /// compute: the slot is written.
  void publish_slot(const Launch& launch, OwnedTile tile) const;

  /// intra_comm: sums what the ranks of the node gave for each tile of this rank's stream, in rank order.
  Status sum_node(const Launch& launch);

  /// inter_send: puts finished chunks of node partials to the owners on the other nodes.
  Status send_partials(const Launch& launch);

  /// What the owner does with a finished tile (fp32, dense), and with the end of each chunk.
  using OnTile = std::function<void(std::int64_t tile, const float* sum)>;
  using OnChunk = std::function<Status(std::int64_t chunk)>;

  /// inter_reduce: sums the node partials of this rank's own tiles, in node order.
  Status sum_world(const Launch& launch, const OnTile& on_tile, const OnChunk& on_chunk);

 private:
  SignalWord& word(std::uint32_t local, std::uint64_t offset) const;
  std::uint64_t sequence(const Launch& launch, std::uint32_t reducer, std::int64_t position) const;
  std::uint32_t reducer_of(OwnedTile tile) const;
  void sum_slots(std::uint64_t position, std::int64_t elements, std::byte* out) const;
  Status wait_partials(const Launch& launch, std::int64_t chunk) const;
  void sum_partials(const Launch& launch, std::int64_t tile, float* out) const;
  void store_partial(const float* in, std::byte* out, std::int64_t count) const;
  void load_partial(const std::byte* in, float* out, std::int64_t count) const;

  const ReducePlan& plan_;
  const Topology& topology_;
  const DataType dtype_;
  const SymmetricView& workspace_;
  Endpoint& endpoint_;
  const std::uint32_t rank_;
  const std::uint32_t node_;
  const std::uint32_t local_;
  const std::uint32_t lane_;
  const std::vector<OwnedTile> compute_order_;
  const std::vector<OwnedTile> stream_;
  SignalWord reduced_{};  ///< stream positions whose node partial is written, over all launches
};

}  // namespace mkernel::kernels
