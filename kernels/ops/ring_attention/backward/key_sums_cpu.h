// The sums of gradients of keys and values on the cpu executor: what the threads of a rank do. They play the
// warps of key_sums.cuh and node_key_sums.cuh, on the same plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/base/views.h"
#include "kernels/cpu/attention/blockwise.h"
#include "kernels/cpu/comm/endpoint.h"
#include "kernels/cpu/sync/launch.h"
#include "kernels/ops/ring_attention/backward/plan.h"
#include "kernels/plan/topology.h"

namespace mkernel::kernels {

/// One launch of one rank. Everything it refers to outlives it. Uses lane 1, between nodes. All but put() may
/// be called by several threads at once. Errors are those of the bounded wait.
class CpuKeySums {
 public:
  /// `d_k` and `d_v`: own ones, [batch, positions, kv_heads, head_dim].
  CpuKeySums(const RingBackwardPlan& plan, const Topology& topology, const SymmetricView& workspace,
             const SymmetricView& lent, Endpoint& endpoint, void* d_k, void* d_v, const Launch& launch);

  /// compute: what own queries give of a tile of keys, [rows of the tile, head_dim] each, rounded into slots
  /// at the owner or, on this node, its rail peer.
  void store(const RingBackwardTasks::Place& place, const float* d_k, const float* d_v) const;
  /// compute: adds up RingBackwardPlan::put_unit(number) as soon as the node has all of it, and stages it.
  Status stage(std::int32_t number) const;
  /// compute: adds up RingBackwardPlan::own_unit(number) as soon as all of it has come.
  Status finish(std::int32_t number) const;
  /// inter_send: puts the sums for rail peers as they are made. Ends when their sources may be overwritten.
  Status put() const;

 private:
  const KvGatherPlan& gather() const { return plan_.gather(); }
  /// By distance: the rail peer there.
  std::uint32_t peer(std::int32_t distance) const;
  std::byte* half(std::byte* lent) const { return lent + launch_.half_at; }
  /// Rows of a unit that lies there.
  HeadRows rows_of(std::byte* unit, std::int32_t tensor) const;
  void add(std::byte* unit, std::int32_t tensor, std::vector<float>& sums) const;
  std::uint64_t& staged(std::int32_t distance, std::int32_t chunk) const;

  /// Of what the ranks of this node have of a unit of the owner's: until it has come, and its sum.
  bool has_part(std::uint32_t local, std::int32_t owner, std::int32_t part) const;
  Status wait_parts(std::int32_t owner, std::int32_t part, std::int32_t unit) const;
  void add_parts(std::int32_t owner, std::int32_t part, std::int32_t unit, std::int32_t tensor,
                 std::vector<float>& sums) const;
  /// Of the sums of own keys that other nodes put: a unit's number in it; negative where they see none of it.
  std::int32_t packed(const RingBackwardPlan::OwnUnit& unit, std::int32_t distance) const;
  Status wait_sums(const RingBackwardPlan::OwnUnit& unit) const;
  Status put_chunk(std::int32_t distance, std::int32_t chunk) const;

  const RingBackwardPlan& plan_;
  const Topology& topology_;
  const SymmetricView& workspace_;
  const SymmetricView& lent_;
  Endpoint& endpoint_;
  void* const own_[KeyPartialsPlan::kTensors];
  const Launch& launch_;
  const std::int32_t me_;
  const std::uint32_t node_;
  const std::int32_t most_chunks_;
  std::unique_ptr<std::uint64_t[]> staged_;  ///< [distance - 1][chunk]: units that are staged
};

}  // namespace mkernel::kernels
