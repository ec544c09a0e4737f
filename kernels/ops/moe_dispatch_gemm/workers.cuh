// The warps of a dispatching CTA, which count, place, push and sum together.
#pragma once

#include <cstdint>

#include "kernels/cuda/comm/endpoint.cuh"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/global.cuh"
#include "kernels/cuda/sync/claim.cuh"
#include "kernels/cuda/sync/trace.cuh"
#include "kernels/cuda/sync/wait.cuh"
#include "kernels/ops/moe_dispatch_gemm/parameters.h"

namespace mkernel::kernels {

/// The working warps of a dispatching CTA: all but those of CTA 0 that have other duties. Two at least.
struct MoeWorkers {
  std::int32_t warp, warps;

  __device__ __forceinline__ std::int32_t lane() const { return static_cast<std::int32_t>(threadIdx.x) % 32; }
  __device__ __forceinline__ std::int32_t thread() const { return warp * 32 + lane(); }
  __device__ __forceinline__ std::int32_t threads() const { return warps * 32; }
  __device__ __forceinline__ void sync() const {
    ptx::barrier_sync(1, static_cast<std::uint32_t>(threads()));
  }
};

/// Waits of this stage end later than those before them, on whatever rank: counts, rows, finished rows.
enum class MoeStage : std::uint32_t { kCounts = 0, kTable = 1, kRows = 2, kFinished = 3 };

__device__ __forceinline__ DeviceWaitScope moe_scope(const MoeParameters& p, MoeStage stage) {
  return at_stage(wait_scope(p.endpoint), static_cast<std::uint32_t>(stage));
}

/// One warp: whether all lanes say so; what each has acquired is then visible to all.
__device__ __forceinline__ bool moe_all(bool mine) {
  const bool all = __all_sync(~0U, mine) != 0;
  __syncwarp();
  return all;
}

/// One warp: a piece of work in the timeline, which ends with the scope.
class MoeTraced {
 public:
  __device__ __forceinline__ MoeTraced(const MoeParameters& p, DeviceWork work) : p_(p), work_(work) {
    if (leads()) begin_work(p_.endpoint.trace);
  }
  __device__ __forceinline__ ~MoeTraced() {
    if (leads()) end_work(p_.endpoint.trace, work_);
  }
  MoeTraced(const MoeTraced&) = delete;
  MoeTraced& operator=(const MoeTraced&) = delete;

 private:
  static __device__ __forceinline__ bool leads() { return threadIdx.x % 32 == 0; }

  const MoeParameters& p_;
  const DeviceWork work_;
};

/// A word of this rank's own, written by its own CTAs.
__device__ __forceinline__ bool moe_wait_own(const MoeParameters& p, const std::uint64_t* word,
                                             std::uint64_t expected, DeviceRole role, DeviceTag tag,
                                             MoeStage stage) {
  return wait_until([word] { return ptx::ld_acquire_gpu(word); }, expected, {role, tag, p.rank, 0},
                    moe_scope(p, stage));
}

/// One warp: units `work(turn, row)` for rows 0 .. rows[turn] - 1 of every node turn, all turns side by side,
/// until none is left or work() says false. Whether all were taken.
template <class Work>
__device__ __forceinline__ bool moe_claim_rows(const MoeParameters& p, std::uint64_t* next,
                                               const std::int32_t* rows, const Work& work) {
  const std::int32_t others = p.plan.others();
  std::int32_t most = 0;
  for (std::int32_t turn = 0; turn < others; ++turn) most = max(most, rows[turn]);
  for (;;) {
    const std::uint64_t unit = claim_unit(next);
    if (unit >= static_cast<std::uint64_t>(most) * static_cast<std::uint64_t>(others)) return true;
    const auto row = static_cast<std::int32_t>(unit / static_cast<std::uint64_t>(others));
    const auto turn = static_cast<std::int32_t>(unit % static_cast<std::uint64_t>(others));
    if (row < rows[turn] && !work(turn, row)) return false;
  }
}

/// All working threads of a CTA: what the first one has told them. Nobody tells the next thing before all
/// have read this one: threads that saw different things would wait for each other for ever.
__device__ __forceinline__ std::int32_t moe_told(const MoeWorkers& workers, const std::int32_t* told) {
  workers.sync();
  const std::int32_t said = *told;
  workers.sync();
  return said;
}

/// All working threads of all dispatching CTAs: until each CTA is here. `word`: MoeScratch::counted or
/// placed. `told`: a word of shared memory. False: somebody is missing.
__device__ __forceinline__ bool moe_meet(const MoeParameters& p, const MoeWorkers& workers,
                                         std::uint64_t* word, std::uint64_t epoch, std::int32_t* told) {
  workers.sync();
  if (workers.thread() == 0) {
    ptx::red_add_release_gpu(word, std::uint64_t{1});
    const auto all = (epoch + 1) * static_cast<std::uint64_t>(p.dispatch_ctas);
    *told = moe_wait_own(p, word, all, DeviceRole::kIntraComm, DeviceTag::kGridBarrier, MoeStage::kCounts);
  }
  return moe_told(workers, told) != 0;
}

}  // namespace mkernel::kernels
