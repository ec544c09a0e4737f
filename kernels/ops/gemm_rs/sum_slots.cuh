// GEMM+RS on the cuda executor: the sums of own rows, made by whichever warps have time. Each one claims a
// unit, waits until the tile that holds it has come from every source, and adds the sources up in rank order
// in fp32: who does it and when does not change a bit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ops/exchange/push_reduce_plan.h"
#include "kernels/ops/gemm_rs/cuda_parameters.h"
#include "kernels/ptx/shared.cuh"
#include "kernels/ptx/vector.cuh"
#include "kernels/sync/wait.cuh"

namespace mkernel::kernels {

/// Whole warp: until every source's tile `index` (row tile x columns + column) lies in its slot here. What
/// they hold may then be read by every lane. False when it gave up.
__device__ __forceinline__ bool gemm_rs_wait_tile(const GemmRsParameters& p, std::uint64_t epoch,
                                                  std::int32_t index) {
  const auto source = static_cast<std::int32_t>(threadIdx.x % 32);
  bool here = true;
  if (source < p.steps.world) {
    here = wait_at_least(
        p.ready + source * p.ready_words + index, PushReducePlan::count(epoch),
        {DeviceRole::kIntraComm, DeviceTag::kTileReady, source, static_cast<std::uint32_t>(index)},
        {p.control, p.deadline_ns});
  }
  // Each lane has acquired one source's; the barrier hands that on to the others.
  __syncwarp();
  return __all_sync(~0U, here);
}

template <DataType kType>
__device__ __forceinline__ void gemm_rs_add(float (&sum)[8], const uint4& piece) {
  const std::uint32_t packed[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two =
        kType == DataType::kBf16 ? ptx::cvt_f32x2_bf16x2(packed[i]) : ptx::cvt_f32x2_f16x2(packed[i]);
    sum[2 * i] += two.x;
    sum[2 * i + 1] += two.y;
  }
}

template <DataType kType>
__device__ __forceinline__ uint4 gemm_rs_round(const float (&sum)[8]) {
  const auto narrow = [&](int i) {
    return kType == DataType::kBf16 ? ptx::cvt_rn_bf16x2(sum[i], sum[i + 1])
                                    : ptx::cvt_rn_f16x2(sum[i], sum[i + 1]);
  };
  return {narrow(0), narrow(2), narrow(4), narrow(6)};
}

/// Whole warp: the sums of one unit, whose tiles are here. A lane takes 16 bytes of four places at a time,
/// from up to four slots at once: sixteen loads in flight, so that few warps read as much as an SM can.
template <class Config>
__device__ __forceinline__ void gemm_rs_sum_unit(const GemmRsParameters& p, std::uint64_t epoch,
                                                 const ReduceUnits::Place& place) {
  constexpr int kPlaces = 4, kSources = 4;
  constexpr int kAcross = Config::kTileN / 8;  // lanes that a row of the tile takes
  constexpr int kRowsAtOnce = kPlaces * 32 / kAcross;
  constexpr int kUnitRows = kReduceUnitElements / Config::kTileN;
  static_assert(kUnitRows % kRowsAtOnce == 0);
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
  const std::int32_t column = place.column * Config::kTileN + lane % kAcross * 8;
  const std::int32_t first_row = static_cast<std::int32_t>(place.row) + lane / kAcross;
  const std::byte* slots = p.slots_here[epoch & 1];
#pragma unroll 1
  for (std::int32_t row = 0; row < kUnitRows; row += kRowsAtOnce) {
    // 16 bytes of each place, or none.
    bool inside[kPlaces];
    std::uint64_t at[kPlaces];
    float sum[kPlaces][8] = {};
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) {
      const std::int32_t my_row = first_row + row + i * (32 / kAcross);
      inside[i] = my_row < p.own_rows && column < p.columns;
      at[i] = (static_cast<std::uint64_t>(my_row) * p.columns + column) * 2;
    }
    for (std::int32_t first = 0; first < p.steps.world; first += kSources) {
      uint4 piece[kSources][kPlaces];
#pragma unroll
      for (int s = 0; s < kSources; ++s) {
#pragma unroll
        for (int i = 0; i < kPlaces; ++i) {
          piece[s][i] = {};
          if (inside[i] && first + s < p.steps.world)
            piece[s][i] = ptx::ld_once_v4(slots + (first + s) * p.slot_bytes + at[i]);
        }
      }
#pragma unroll
      for (int s = 0; s < kSources; ++s) {
#pragma unroll
        for (int i = 0; i < kPlaces; ++i) gemm_rs_add<Config::kInput>(sum[i], piece[s][i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) {
      if (inside[i]) ptx::st_v4(p.c + at[i], gemm_rs_round<Config::kInput>(sum[i]));
    }
  }
}

/// Whole warp: claims units until there are no more, or a wait gave up. `failed_claims`: of all warps that
/// call this in a launch, one each.
template <class Config>
__device__ __forceinline__ void gemm_rs_sum(const GemmRsParameters& p, std::uint32_t failed_claims) {
  const std::uint64_t epoch = p.control->epoch;
  const auto units = static_cast<std::uint32_t>(p.units.units());
  // Every launch raises the count by as much, so that nothing needs resetting.
  const std::uint64_t begin = epoch * (units + failed_claims);
  const auto claim = [&] {
    return threadIdx.x % 32 == 0
               ? static_cast<std::uint32_t>(
                     atomicAdd(reinterpret_cast<unsigned long long*>(p.claimed), 1ULL) - begin)
               : 0U;
  };
  std::uint32_t next = claim();
  for (;;) {
    const std::uint32_t unit = __shfl_sync(~0U, next, 0);
    if (unit >= units) return;
    next = claim();  // under way while this one is summed
    const ReduceUnits::Place place = p.units.place(static_cast<std::int32_t>(unit));
    if (place.row >= p.own_rows) continue;
    if (!gemm_rs_wait_tile(p, epoch, place.row_tile * p.raster.columns + place.column)) return;
    gemm_rs_sum_unit<Config>(p, epoch, place);
  }
}

}  // namespace mkernel::kernels
