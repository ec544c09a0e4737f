// The sums of own rows, made by whichever warps have time. Each one claims a unit, waits until the tile that
// holds it has come from every source, and adds the sources up in rank order in fp32: who does it and when
// does not change a bit. Where the sums go is for the operation to say:
//
//   struct Output {
//     // One lane: 16 bytes of a unit, at byte `inside` of the unit ([unit rows, tile columns]) and at byte
//     // `at` of the rank's rows of c.
//     void store(std::uint64_t epoch, std::uint32_t unit, std::uint32_t inside, std::uint64_t at,
//                const uint4& sums);
//     // Whole warp, after the stores of a unit.
//     void finish(std::uint64_t epoch, std::uint32_t unit);
//     // Whole warp, once what was finished should be known: before the next stores, before it may wait for
//     // long, and at the end.
//     void flush(std::uint64_t epoch);
//   };
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ops/exchange/claims.cuh"
#include "kernels/ops/exchange/push_reduce_plan.h"
#include "kernels/ops/exchange/tile_reduce_parameters.h"
#include "kernels/ptx/shared.cuh"
#include "kernels/ptx/vector.cuh"
#include "kernels/sync/device_trace.cuh"
#include "kernels/sync/wait.cuh"

namespace mkernel::kernels {

/// Whole warp: whether wait_tile() would return at once.
__device__ __forceinline__ bool tile_here(const TileReduceParameters& p, std::uint64_t epoch,
                                          std::int32_t index) {
  const auto source = static_cast<std::int32_t>(threadIdx.x % 32);
  const bool here = source >= p.steps.world || ptx::ld_acquire_sys(p.ready + source * p.ready_words +
                                                                   index) >= PushReducePlan::count(epoch);
  __syncwarp();  // hands on what each lane has acquired
  return __all_sync(~0U, here);
}

/// Whole warp: until every source's tile `index` (row tile x columns + column) lies in its slot here. What
/// they hold may then be read by every lane. False when it gave up.
__device__ __forceinline__ bool wait_tile(const TileReduceParameters& p, std::uint64_t epoch,
                                          std::int32_t index) {
  const auto source = static_cast<std::int32_t>(threadIdx.x % 32);
  bool here = true;
  if (source < p.steps.world) {
    here = wait_at_least(
        p.ready + source * p.ready_words + index, PushReducePlan::count(epoch),
        {DeviceRole::kIntraComm, DeviceTag::kTileReady, source, static_cast<std::uint32_t>(index)},
        {p.control, p.deadline_ns, p.trace});
  }
  // Each lane has acquired one source's; the barrier hands that on to the others.
  __syncwarp();
  return __all_sync(~0U, here);
}

template <DataType kType>
__device__ __forceinline__ void add_piece(float (&sum)[8], const uint4& piece) {
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
__device__ __forceinline__ uint4 round_piece(const float (&sum)[8]) {
  const auto narrow = [&](int i) {
    return kType == DataType::kBf16 ? ptx::cvt_rn_bf16x2(sum[i], sum[i + 1])
                                    : ptx::cvt_rn_f16x2(sum[i], sum[i + 1]);
  };
  return {narrow(0), narrow(2), narrow(4), narrow(6)};
}

/// Whole warp: the sums of one unit, whose tiles are here. A lane takes 16 bytes of four places at a time,
/// from up to four slots at once: sixteen loads in flight, so that few warps read as much as an SM can.
template <class Config, class Output>
__device__ __forceinline__ void sum_unit(const TileReduceParameters& p, std::uint64_t epoch,
                                         const ReduceUnits::Place& place, std::uint32_t unit,
                                         Output& output) {
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
    const auto inside = [&](int i) {
      return first_row + row + i * (32 / kAcross) < p.own_rows && column < p.columns;
    };
    const std::uint64_t first_at = (static_cast<std::uint64_t>(first_row + row) * p.columns + column) * 2;
    const std::uint32_t step = 32 / kAcross * p.columns * 2;
    float sum[kPlaces][8] = {};
    for (std::int32_t first = 0; first < p.steps.world; first += kSources) {
      uint4 piece[kSources][kPlaces];
#pragma unroll
      for (int s = 0; s < kSources; ++s) {
#pragma unroll
        for (int i = 0; i < kPlaces; ++i) {
          piece[s][i] = {};
          if (inside(i) && first + s < p.steps.world)
            piece[s][i] = ptx::ld_once_v4(slots + (first + s) * p.slot_bytes + first_at + i * step);
        }
      }
#pragma unroll
      for (int s = 0; s < kSources; ++s) {
#pragma unroll
        for (int i = 0; i < kPlaces; ++i) add_piece<Config::kInput>(sum[i], piece[s][i]);
      }
    }
    output.flush(epoch);
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) {
      if (!inside(i)) continue;
      const std::uint32_t piece = (row / (32 / kAcross) + i) * 32 + lane;
      output.store(epoch, unit, piece * 16, first_at + i * step, round_piece<Config::kInput>(sum[i]));
    }
  }
}

/// Whole warp: sums of own rows until there are no more, or a wait gave up. `warps`: how many call this in a
/// launch.
template <class Config, class Output>
__device__ __forceinline__ void sum_units(const TileReduceParameters& p, std::uint32_t warps, Output output) {
  const std::uint64_t epoch = p.control->epoch;
  if (threadIdx.x % 32 == 0) begin_work(p.trace);
  claim_units(p.claimed, epoch, static_cast<std::uint32_t>(p.units.units()), warps, [&](std::uint32_t unit) {
    const ReduceUnits::Place place = p.units.place(static_cast<std::int32_t>(unit));
    if (place.row >= p.own_rows) return true;
    const std::int32_t tile = place.row_tile * p.raster.columns + place.column;
    if (!tile_here(p, epoch, tile)) {
      output.flush(epoch);
      if (!wait_tile(p, epoch, tile)) return false;
    }
    sum_unit<Config>(p, epoch, place, unit, output);
    output.finish(epoch, unit);
    return true;
  });
  output.flush(epoch);
  if (threadIdx.x % 32 == 0) end_work(p.trace, DeviceWork::kSum);
}

}  // namespace mkernel::kernels
