// The all-gather of keys and values on the cpu executor: what the threads of a rank do. They play the CTAs of
// roles.cuh, on the same plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/views.h"
#include "kernels/cpu/attention/blockwise.h"
#include "kernels/cpu/comm/endpoint.h"
#include "kernels/cpu/sync/launch.h"
#include "kernels/ops/ring_attention/plan.h"
#include "kernels/plan/topology.h"

namespace mkernel::kernels {

/// Cuts the heads of a plan into the chunks of the cpu executor: of at most so many bytes, and whole tiles of
/// keys where there are several.
void cut_on_cpu(RingPlan& plan, std::int64_t most_bytes);

/// One launch of one rank. Everything it refers to outlives it. Uses lane 0, between nodes.
class CpuKvGather {
 public:
  /// `k` and `v`: own ones, [batch, positions, kv_heads, head_dim].
  CpuKvGather(const RingPlan& plan, const Topology& topology, const SymmetricView& workspace,
              const SymmetricView& lent, Endpoint& endpoint, const void* k, const void* v,
              const Launch& launch);

  /// Starts the roles below.
  void start(Launch& launch) const;

  /// intra_comm, then inter_recv: pushes own chunks to the node, and those that rail peers put here as they
  /// arrive. Ends when the chunks of all other ranks are here.
  Status push() const;
  /// inter_send: puts own chunks to the rail peers. Ends when their sources may be overwritten.
  Status send() const;

  /// Until keys and values of a chunk are here. Own ones are.
  Status wait(std::int32_t source, std::int32_t chunk, const char* role) const;
  /// A head's keys (tensor 0) or values (1), of all positions of the source.
  HeadRows rows(std::int32_t source, std::int32_t tensor, std::int32_t head) const;

 private:
  const KvGatherPlan& gather() const { return plan_.gather; }
  std::uint64_t& ready(std::byte* workspace, std::int32_t source, std::int32_t tensor,
                       std::int32_t chunk) const;
  std::byte* chunk_at(std::byte* lent, std::int32_t source, std::int32_t tensor, std::int32_t chunk) const;
  Status wait_word(std::int32_t source, std::int32_t tensor, std::int32_t chunk, const char* role) const;
  void push_chunk(std::int32_t source, std::int32_t tensor, std::int32_t chunk) const;
  void copy_chunk(std::int32_t source, std::int32_t tensor, std::int32_t chunk, std::byte* to) const;

  const RingPlan& plan_;
  const Topology& topology_;
  const SymmetricView& workspace_;
  const SymmetricView& lent_;
  Endpoint& endpoint_;
  const void* const own_[KvGatherPlan::kTensors];
  const Launch& launch_;
  const std::int32_t me_;
  const std::uint32_t local_;
  std::vector<std::uint32_t> rail_peers_;  ///< from the next node on
};

}  // namespace mkernel::kernels
