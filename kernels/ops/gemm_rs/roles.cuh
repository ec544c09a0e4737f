// GEMM+RS on the cuda executor: what its CTAs do with the sums. See README.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/launch/rehearsal.cuh"
#include "kernels/cuda/ptx/vector.cuh"
#include "kernels/cuda/reduce/marked_slots.cuh"
#include "kernels/cuda/reduce/sum_slots.cuh"
#include "kernels/cuda/reduce/tile_reduce.cuh"
#include "kernels/cuda/reduce/tile_reduce_parameters.h"

namespace mkernel::kernels {

/// Sums go into this rank's rows of c, and that is all.
struct GemmRsOutput {
  std::byte* own_c;

  __device__ __forceinline__ void store(std::uint64_t, const SumUnit&, std::uint32_t, std::uint64_t at,
                                        const uint4& sums) const {
    ptx::st_v4(own_c + at, sums);
  }
  __device__ __forceinline__ void begin(std::uint64_t) const {}
  __device__ __forceinline__ void finish(const SumUnit&) const {}
  __device__ __forceinline__ void flush(std::uint64_t) const {}
};

struct GemmRsRoles {
  using Parameters = TileReduceParameters;
  static constexpr int kSenders = 1;

  static __device__ __forceinline__ void send(const Parameters& p, std::uint64_t epoch, int) {
    put_partials(p, epoch);
  }

  template <class Config>
  static __device__ __forceinline__ void spare_warp(const Parameters& p, std::uint32_t warps) {
    if constexpr (Config::kSharedTiles) {
      if (p.marked) return;  // sum_marked()
    }
    if (p.units.others > 0) {
      sum_units<Config, true>(p, warps, GemmRsOutput{p.own_c});
    } else {
      sum_units<Config, false>(p, warps, GemmRsOutput{p.own_c});
    }
  }

  template <class Config>
  static __device__ __forceinline__ void sum_marked(const Parameters& p) {
    sum_marked_units<Config>(p, multiplying_warps<Config>(p), GemmRsOutput{p.own_c});
  }
};

template <class Config>
__global__ __launch_bounds__(Config::kThreads,
                             1) void gemm_rs_kernel(const __grid_constant__ TileReduceParameters p) {
  extern __shared__ __align__(1024) std::byte memory[];
  if (!is_rehearsal(p.endpoint)) tile_reduce<Config, GemmRsRoles>(p, memory);
}

}  // namespace mkernel::kernels
