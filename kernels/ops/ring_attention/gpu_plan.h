// Plan of ring attention on the cuda executor.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/ops/ring_attention/plan.h"
#include "kernels/plan/machine.h"
#include "kernels/plan/topology.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

/// Overrides; the same on every rank. 0 or empty = by shape and device.
struct RingAttentionOptions {
  std::int32_t comm_ctas = 0;  ///< that push keys and values before they compute
  std::int32_t sms = 0;        ///< multiprocessors at most, so that ranks can share a device
  std::string machine;         ///< as GemmPlanOptions' of this name
};

/// Pure; the same on every rank but for what is of this rank.
struct RingGpuPlan : RingPlan {
  std::int32_t comm_ctas = 0;  ///< the first of the grid; all but idle_ctas() compute afterwards
  std::int32_t ctas = 0;
  Machine machine;  ///< that it was planned for

  /// CTAs of the forward pass that never compute: over several nodes CTA 0, which sends and polls for as long
  /// as a launch takes.
  std::int32_t idle_ctas() const { return gather.rails() > 0 ? 1 : 0; }
  /// Bytes that this rank puts in every launch.
  std::uint64_t wire_bytes() const {
    const std::int64_t bytes = std::int64_t{gather.rows(gather.rank)} * gather.row_bytes;
    return static_cast<std::uint64_t>(KvGatherPlan::kTensors * bytes) * gather.rails();
  }

  /// `machine`: what it runs on; `kind`: as RingPlan::check(). Errors: kInvalidArgument naming field, value
  /// and limit.
  static Result<RingGpuPlan> make(const AttentionShape& shape, const Topology& topology, std::uint32_t rank,
                                  const Machine& machine, const RingAttentionOptions& options = {},
                                  OpKind kind = OpKind::kRingAttention);

  std::string signature() const;
  /// Of a tile. Where the ranks' positions do not end with one, a tile of each rank is not full; of packed
  /// sequences, of each rank and sequence.
  std::int32_t tile_keys() const {
    const std::int64_t keys = packed() ? average_rows() : (shape.sequence + gather.world - 1) / gather.world;
    return attention_tile_keys(static_cast<std::int32_t>(shape.head_dim), shape.causal, keys);
  }
};

}  // namespace mkernel::kernels
