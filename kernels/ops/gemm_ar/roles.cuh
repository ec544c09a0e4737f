// GEMM+AR on the cuda executor: what its CTAs do with the sums. See README.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ops/exchange/claims.cuh"
#include "kernels/ops/exchange/push_sums_plan.h"
#include "kernels/ops/exchange/sum_slots.cuh"
#include "kernels/ops/exchange/tile_reduce.cuh"
#include "kernels/ops/gemm_ar/cuda_parameters.h"
#include "kernels/ptx/global.cuh"
#include "kernels/ptx/vector.cuh"
#include "kernels/sync/device_trace.cuh"
#include "kernels/sync/wait.cuh"

namespace mkernel::kernels {

/// Sums go into this rank's rows of c and, out of the same registers, to every other rank of the node.
struct GemmArOutput {
  const GemmArParameters& p;
  std::int32_t finished = -1;  ///< unit of which nobody was told yet

  __device__ __forceinline__ void store(std::uint64_t epoch, std::uint32_t unit, std::uint32_t inside,
                                        std::uint64_t at, const uint4& sums) const {
    const std::uint64_t there = (epoch & 1) * p.sums_parity_bytes + unit * PushSumsPlan::kUnitBytes + inside;
    for (std::int32_t turn = 0; turn < p.steps.world - 1; ++turn)
      ptx::st_v4(p.sums_there[turn] + there, sums);
    ptx::st_v4(p.own_c + at, sums);
  }

  /// The ranks are told later: a release waits for the stores before it, which meanwhile cross the links
  /// under the loads of the next unit.
  __device__ __forceinline__ void finish(std::uint64_t, std::uint32_t unit) {
    finished = static_cast<std::int32_t>(unit);
  }
  /// A lane for each rank. The barrier puts the stores of all lanes before its release.
  __device__ __forceinline__ void flush(std::uint64_t epoch) {
    if (finished < 0) return;
    const auto turn = static_cast<std::int32_t>(threadIdx.x % 32);
    __syncwarp();
    if (turn < p.steps.world - 1)
      ptx::st_release_sys(p.summed_there[turn] + finished, PushSumsPlan::count(epoch));
    __syncwarp();
    finished = -1;
  }
};

/// Whole warp: a unit of another owner from the workspace, where it is complete, to its place in c: eight
/// loads of 16 bytes in flight in every lane.
template <class Config>
__device__ __forceinline__ void copy_unit(const GemmArParameters& p, std::uint64_t epoch, std::int32_t owner,
                                          std::uint32_t unit) {
  constexpr int kPieces = PushSumsPlan::kUnitBytes / (32 * 16);
  constexpr int kAcross = Config::kTileN / 8;  // lanes that a row of the unit takes
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
  const ReduceUnits::Place place = p.units.place(static_cast<std::int32_t>(unit));
  const std::int32_t column = place.column * Config::kTileN + lane % kAcross * 8;
  const std::int32_t first_row = static_cast<std::int32_t>(place.row) + lane / kAcross;
  const std::byte* from = p.sums_here + (epoch & 1) * p.sums_parity_bytes + owner * p.sums_owner_bytes +
                          unit * PushSumsPlan::kUnitBytes + lane * 16;
  const auto inside = [&](int i) {
    return first_row + i * (32 / kAcross) < p.rows_of[owner] && column < p.columns;
  };
  uint4 piece[kPieces];
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    if (inside(i)) piece[i] = ptx::ld_once_v4(from + i * 32 * 16);
  }
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const std::int64_t row = p.first_row[owner] + first_row + i * (32 / kAcross);
    if (inside(i)) ptx::st_v4(p.c + (row * p.columns + column) * 2, piece[i]);
  }
}

/// Whole warp: units of the other owners, each owner's next one in turn as they sum them, until there are no
/// more, or a wait gave up.
template <class Config>
__device__ __forceinline__ void copy_units(const GemmArParameters& p, std::uint32_t warps) {
  const std::uint64_t epoch = p.control->epoch;
  const auto units = static_cast<std::uint32_t>(p.units.units());
  const std::uint32_t others = p.steps.world - 1;
  if (threadIdx.x % 32 == 0) begin_work(p.trace);
  // Longer than that of the tiles: when a rank is missing, who waits for its tiles gives up first and names
  // it, and not who waits for sums of a rank that waits for it.
  const DeviceWaitScope scope{p.control, p.deadline_ns / 4 * 5, p.trace};
  claim_units(p.copied, epoch, units * others, warps, [&](std::uint32_t copy) {
    const std::uint32_t unit = copy / others;
    const std::int32_t turn = p.steps.rank + 1 + static_cast<std::int32_t>(copy % others);
    const std::int32_t owner = turn < p.steps.world ? turn : turn - p.steps.world;
    if (p.units.place(static_cast<std::int32_t>(unit)).row >= p.rows_of[owner]) return true;
    bool here = true;
    if (threadIdx.x % 32 == 0) {
      here = wait_at_least(p.summed + owner * units + unit, PushSumsPlan::count(epoch),
                           {DeviceRole::kIntraComm, DeviceTag::kChunkReady, owner, unit}, scope);
    }
    __syncwarp();  // hands on what lane 0 has acquired
    if (!__all_sync(~0U, here)) return false;
    copy_unit<Config>(p, epoch, owner, unit);
    return true;
  });
  if (threadIdx.x % 32 == 0) end_work(p.trace, DeviceWork::kCopy);
}

struct GemmArRoles {
  using Parameters = GemmArParameters;

  /// One warp of three begins with copies, which are less work than sums: nothing waits for them. They wait
  /// for sums of other ranks, which wait for tiles only: with warps that begin with sums in every CTA,
  /// somebody always gets on.
  template <class Config>
  static __device__ __forceinline__ void spare_warp(const Parameters& p, std::uint32_t warps) {
    const bool sums_first = threadIdx.x / 32 % 3 != 2;
    if (sums_first) sum_units<Config>(p, warps, GemmArOutput{p});
    copy_units<Config>(p, warps);
    if (!sums_first) sum_units<Config>(p, warps, GemmArOutput{p});
  }
};

template <class Config>
__global__ __launch_bounds__(Config::kThreads,
                             1) void gemm_ar_kernel(const __grid_constant__ GemmArParameters p) {
  extern __shared__ __align__(1024) std::byte memory[];
  tile_reduce<Config, GemmArRoles>(p, memory);
}

}  // namespace mkernel::kernels
