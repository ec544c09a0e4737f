// Data that say themselves that they have come, and the sums of slots that hold such data
// (plan/push_reduce_plan.h): a warp reads its unit until none of it is the mark. Between the stores of a tile
// and its sums there is no fence and no word. GEMM+AR's finished sums travel in the same way
// (plan/push_sums_plan.h).
//
// The stores are those of several GPUs, TMA's of tiles and relaxed ones of sums, and the loads are relaxed.
// That is enough, because a load hands on nothing but the value that it has seen: a store of 16 aligned bits
// is seen whole or not at all. The mark is written over a value that was seen, so after it; the next store
// there comes after the end of this launch (the plans say why), by when the mark is written. Stores have been
// made when their kernel ends, TMA's because the storing thread waits for them, so none of them outlives its
// launch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/ptx/poll.cuh"
#include "kernels/cuda/ptx/vector.cuh"
#include "kernels/cuda/reduce/claims.cuh"
#include "kernels/cuda/reduce/sum_slots.cuh"
#include "kernels/cuda/sync/trace.cuh"
#include "kernels/cuda/sync/wait.cuh"
#include "kernels/plan/push_reduce_plan.h"

namespace mkernel::kernels {

/// Whether any of the eight elements is PushReducePlan::kMark, all ones.
__device__ __forceinline__ bool holds_mark(const uint4& piece) {
  // The top bit of a half, where the half is all ones; one above such a half may be wrong.
  const auto ones = [](std::uint32_t two) { return (~two - 0x00010001U) & two & 0x80008000U; };
  return (ones(piece.x) | ones(piece.y) | ones(piece.z) | ones(piece.w)) != 0;
}

/// Like ReadOnce, of marked data: reads until everything has come, and leaves the mark.
struct ReadMarked {
  const TileReduceParameters& p;
  std::uint64_t epoch;
  /// What a failed wait has waited for: a tile or a unit of this number.
  DeviceTag tag;
  std::uint32_t index;
  std::uint32_t stage = 0;  ///< SumStage

  template <int kSources, int kPlaces, class Wanted, class At>
  __device__ __forceinline__ bool operator()(uint4 (&piece)[kSources][kPlaces], std::int32_t first,
                                             const Wanted& wanted, const At& at) const {
    const bool came = wait(piece, first, wanted, at);
#pragma unroll
    for (int j = 0; j < kSources; ++j) {
#pragma unroll
      for (int i = 0; i < kPlaces; ++i) {
        if (came && wanted(j, i)) ptx::st_v4(at(j, i), uint4{~0U, ~0U, ~0U, ~0U});
      }
    }
    return __all_sync(~0U, came);
  }

 private:
  /// One lane: until none of its pieces holds the mark. It looks at all of them at once, which takes one trip
  /// to memory after the last one has come; but who waits for long looks at one that lacks, so as not to slow
  /// down what it waits for. A failed wait names the rank whose piece that is.
  template <int kSources, int kPlaces, class Wanted, class At>
  __device__ __forceinline__ bool wait(uint4 (&piece)[kSources][kPlaces], std::int32_t first,
                                       const Wanted& wanted, const At& at) const {
    constexpr int kLooksAtAll = 16;  // some 10 us
    const std::uint64_t count = PushReducePlan::count(epoch);
    DeviceWaitSite site{DeviceRole::kIntraComm, tag, p.source_rank[first], index};
    const std::byte* lacking = nullptr;
    int looks = 0;
    const auto come = [&] {
      if (looks == kLooksAtAll && holds_mark(ptx::ld_relaxed_sys_v4(lacking))) return count - 1;
      looks = min(looks + 1, kLooksAtAll);
#pragma unroll
      for (int j = 0; j < kSources; ++j) {
#pragma unroll
        for (int i = 0; i < kPlaces; ++i) {
          piece[j][i] = {};
          if (wanted(j, i)) piece[j][i] = ptx::ld_relaxed_sys_v4(at(j, i));
        }
      }
      lacking = nullptr;
#pragma unroll
      for (int j = 0; j < kSources; ++j) {
#pragma unroll
        for (int i = 0; i < kPlaces; ++i) {
          if (!holds_mark(piece[j][i])) continue;
          lacking = at(j, i);
          site.peer = p.source_rank[first + j];
        }
      }
      return lacking == nullptr ? count : count - 1;
    };
    DeviceWaitScope scope = wait_scope(p, stage);
    if (threadIdx.x % 32 != 0) scope.trace = {};  // one lane's wait stands for the warp's
    return wait_until(come, count, site, scope);
  }
};

/// Whole warp: sums until there are no more, or a wait gave up. `warps`: how many call this in a launch.
/// `output`, `others`: as of sum_units(), but that only store() is called.
template <class Config, class Output>
__device__ __forceinline__ void sum_marked_units(const TileReduceParameters& p, std::uint32_t warps,
                                                 const Output& output, const OtherUnits& others = {}) {
  const SumsOfLaunch launch(p);
  if (threadIdx.x % 32 == 0) begin_work(p.endpoint.trace);
  const auto units = static_cast<std::uint32_t>(p.units.units());
  share_units<Config>(p, p.claimed, launch.epoch, units, warps, others, [&](std::uint32_t index) {
    const SumUnit unit = sum_unit_at<false>(p, static_cast<std::int32_t>(index));
    if (unit.place.row >= p.owner(p.reduced(0)).rows) return true;
    const auto tile =
        static_cast<std::uint32_t>(unit.place.row_tile * p.units.raster.columns() + unit.place.column);
    return sum_unit<Config, false>(
        p, launch, unit, ReadMarked{p, launch.epoch, DeviceTag::kTileReady, tile}, [] {},
        [&](std::uint32_t inside, std::uint64_t at, const uint4& sums) {
          output.store(launch.epoch, unit, inside, at, sums);
        });
  });
  if (threadIdx.x % 32 == 0) end_work(p.endpoint.trace, DeviceWork::kSum);
}

}  // namespace mkernel::kernels
