// intra_comm: rows of own tokens into the pools of those who own their experts.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/ptx/fence.cuh"
#include "kernels/cuda/ptx/global.cuh"
#include "kernels/ops/moe_dispatch_gemm/parameters.h"
#include "kernels/ops/moe_dispatch_gemm/routing.cuh"
#include "kernels/ops/moe_dispatch_gemm/rows.cuh"

namespace mkernel::kernels {

/// Where a row of a source goes: 0 is this rank, 1 + turn its rail peer.
struct MoePush {
  std::int32_t owner = 0, row = 0, block = 0;
};
__device__ __forceinline__ MoePush moe_push_to(const MoeParameters& p, std::int32_t source,
                                               std::int32_t expert, std::int32_t index) {
  const std::int32_t owner = p.plan.owners.owner(expert);
  const std::int32_t row = p.scratch.source_rows[source * p.plan.owners.experts + expert] + index;
  return {owner, row, moe_table(p).of_rank(owner).block_of(p.plan.owners.local(expert), row)};
}

/// A lane, of a row that its warp copies: where the finished row goes.
__device__ __forceinline__ void moe_store_origin(const MoeParameters& p, const MoePush& to,
                                                 std::int32_t entry) {
  auto* origins = reinterpret_cast<ExpertRowOrigin*>(moe_memory(p, to.owner) + p.places.origin);
  origins[to.row] = {p.rank, entry};
}

__device__ __forceinline__ std::byte* moe_pool_row(const MoeParameters& p, std::int32_t owner,
                                                   std::int32_t row) {
  return moe_memory(p, owner) + p.places.row + static_cast<std::uint64_t>(row) * p.plan.row_bytes;
}

/// The first `rows` lanes, after their warp has copied their rows and met: rows of one block are counted
/// together.
__device__ __forceinline__ void moe_signal_rows(const MoeParameters& p, const MoePush& to,
                                                std::int32_t rows) {
  const std::uint32_t here = rows == 32 ? ~0U : (1U << rows) - 1;
  const std::uint32_t same = __match_any_sync(here, to.owner * p.plan.max_blocks() + to.block);
  if (static_cast<std::int32_t>(threadIdx.x) % 32 != __ffs(static_cast<int>(same)) - 1) return;
  const ptx::SysReleased released = ptx::fence_acq_rel_sys();
  ptx::red_add_relaxed_sys(moe_words(p, to.owner, p.places.arrived) + to.block,
                           static_cast<std::uint64_t>(__popc(same)), released);
}

/// One unit of pushes, by one warp: its rows, where each came from, and then the counts of the blocks.
template <DataType kType>
__device__ __forceinline__ void moe_push_unit(const MoeParameters& p, const MoeRouting& routing,
                                              std::int32_t first) {
  const std::int32_t lane = static_cast<std::int32_t>(threadIdx.x) % 32;
  const std::int32_t rows = min(kPushUnitRows, routing.pushes() - first);
  // A lane finds where its row goes.
  std::int32_t entry = 0;
  float weight = 0;
  MoePush to;
  if (lane < rows) {
    entry = p.scratch.pushed[first + lane];
    weight = p.routed.weights[entry];
    const std::int32_t expert = p.routed.experts[entry];
    to = moe_push_to(p, 0, expert, routing.index(first + lane, expert));
    moe_store_origin(p, to, entry);
  }
  for (std::int32_t row = 0; row < rows; ++row) {
    const std::int32_t token = __shfl_sync(~0U, entry, row) / p.routed.topk;
    const std::int32_t owner = __shfl_sync(~0U, to.owner, row), at = __shfl_sync(~0U, to.row, row);
    moe_write_row<kType>(p, moe_pool_row(p, owner, at),
                         p.x + token * static_cast<std::int64_t>(p.plan.row_bytes),
                         __shfl_sync(~0U, weight, row));
  }
  __syncwarp();
  if (lane < rows) moe_signal_rows(p, to, rows);
}

/// Units of pushes as one warp takes them, in order, when the table is built.
template <DataType kType>
class MoePushes {
 public:
  __device__ __forceinline__ MoePushes(const MoeParameters& p, const MoeRouting& routing, std::uint64_t epoch)
      : p_(p), routing_(routing), epoch_(epoch) {}

  /// Pushes one unit. False: none is left.
  __device__ __forceinline__ bool push() { return push_before(routing_.pushes()); }
  /// Of those that come before the rows that have crossed.
  __device__ __forceinline__ bool push_first() { return push_before(routing_.first_pushes()); }

 private:
  /// Of those that begin before row `end`.
  __device__ __forceinline__ bool push_before(std::int32_t end) {
    if (first_ < 0) {
      const std::uint64_t unit = claim_unit(&p_.scratch.counters[epoch_ & 1].pushes);
      first_ = static_cast<std::int64_t>(unit) * kPushUnitRows;
    }
    if (first_ >= end) return false;
    moe_push_unit<kType>(p_, routing_, static_cast<std::int32_t>(first_));
    __syncwarp();
    first_ = -1;
    return true;
  }

  const MoeParameters& p_;
  const MoeRouting& routing_;
  const std::uint64_t epoch_;
  std::int64_t first_ = -1;  ///< row of a unit that is taken and not pushed; < 0: there is none
};

}  // namespace mkernel::kernels
