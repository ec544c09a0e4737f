// The sums of gradients of keys and values on the cpu executor: what the threads of a rank do.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/base/views.h"
#include "kernels/cpu/comm/endpoint.h"
#include "kernels/cpu/sync/launch.h"
#include "kernels/ops/ring_attention/plan.h"
#include "kernels/plan/kv_reduce_plan.h"
#include "kernels/plan/topology.h"

namespace mkernel::kernels {

/// One launch of one rank. Everything it refers to outlives it. Uses lane 1, between nodes.
class CpuKvReduce {
 public:
  /// `d_k` and `d_v`: own ones, [batch, positions, kv_heads, head_dim].
  CpuKvReduce(const RingPlan& plan, const KvReducePlan& reduce, const Topology& topology,
              const SymmetricView& workspace, const SymmetricView& lent, Endpoint& endpoint, void* d_k,
              void* d_v, const Launch& launch);

  /// compute: this rank's part of the gradients of a chunk of `owner`, [rows of the chunk, head_dim] each.
  void store(std::int32_t owner, std::int32_t chunk, const float* d_k, const float* d_v) const;

  /// What sum() takes: chunks of other nodes' owners, then own ones.
  std::int32_t units() const { return reduce_.nodes * reduce_.chunks; }
  /// compute: adds up the parts of one of them, as soon as they have come.
  Status sum(std::int32_t unit) const;

  /// inter_send: puts the sums for rail peers as they are made. Ends when their sources may be overwritten.
  Status put() const;

 private:
  /// By distance (KvReducePlan).
  std::uint32_t node(std::int32_t distance) const;
  std::int32_t peer(std::int32_t distance) const;
  std::uint64_t& stored(std::byte* workspace, std::int32_t distance, std::int32_t writer,
                        std::int32_t chunk) const;
  std::byte* half(std::byte* lent) const { return lent + launch_.half_at; }
  const float* floats(std::uint64_t block, std::uint64_t chunk_at) const;
  bool contributes(std::uint32_t node, std::int32_t owner, std::int32_t chunk) const;

  Status wait_parts(std::int32_t distance, std::int32_t chunk) const;
  Status wait_partials(std::int32_t chunk) const;
  std::vector<float> sum_of_node(std::int32_t distance, std::int32_t tensor, std::int32_t chunk) const;
  void stage(std::int32_t distance, std::int32_t chunk) const;
  void finish(std::int32_t chunk) const;

  const RingPlan& plan_;
  const KvReducePlan& reduce_;
  const Topology& topology_;
  const SymmetricView& workspace_;
  const SymmetricView& lent_;
  Endpoint& endpoint_;
  void* const own_[KvReducePlan::kTensors];
  const Launch& launch_;
  const std::int32_t me_;
  const std::uint32_t node_, local_;
  std::unique_ptr<std::uint64_t[]> staged_;  ///< [distance - 1][chunk]: 1 when its sum is staged
};

}  // namespace mkernel::kernels
