// GEMM+RS on the cuda executor: the roles of its CTAs. See README.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/gemm/sm90_body.cuh"
#include "kernels/ops/exchange/push_reduce_plan.h"
#include "kernels/ops/gemm_rs/cuda_parameters.h"
#include "kernels/ops/gemm_rs/sum_slots.cuh"
#include "kernels/ptx/global.cuh"
#include "kernels/sync/launch_end.cuh"
#include "kernels/sync/wait.cuh"

namespace mkernel::kernels {

/// compute: which tiles of the partial product this CTA computes, and who is told.
template <class Config>
class GemmRsSchedule {
 public:
  static constexpr bool kWaits = false;

  explicit __device__ __forceinline__ GemmRsSchedule(const GemmRsParameters& p) : p_(p) {}

  __device__ __forceinline__ int tiles() const {
    return (p_.raster.tiles() - cluster() + clusters() - 1) / clusters();
  }
  __device__ __forceinline__ int k_blocks() const { return p_.k_blocks; }

  __device__ __forceinline__ Sm90TilePlace tile(int i) const {
    const Rows rows = rows_of(i);
    // Owners have unequal numbers of rows. Beyond the last one TMA reads zeros and writes nothing; the rows
    // of the next owner, which the tile may reach into, are computed and not written.
    constexpr std::int32_t kBeyond = 1 << 30;
    const bool any = rows.first < p_.rows_of[rows.owner];
    const int column = rows.column * Config::kTileN;
    return {&p_.a,
            &p_.b,
            &p_.slots[(p_.control->epoch & 1) * p_.steps.world + rows.owner],
            any ? p_.first_row[rows.owner] + rows.first : kBeyond,
            column,
            0,
            any ? rows.first : kBeyond,
            column};
  }
  __device__ __forceinline__ void before_load(int) const {}

  /// The tile lies in its slot at the owner: says so there.
  __device__ __forceinline__ void after_store(int i) const {
    const Rows rows = rows_of(i);
    if (rows.first >= p_.rows_of[rows.owner]) return;
    std::uint64_t* ready =
        p_.ready_there[rows.owner] + (rows.first / Config::kTileM) * p_.raster.columns + rows.column;
    const std::uint64_t count = PushReducePlan::count(p_.control->epoch);
    if (rows.owner == p_.steps.rank) {
      ptx::st_release_gpu(ready, count);
    } else {
      ptx::st_release_sys(ready, count);
    }
  }

  /// Multiplying warps help to sum own rows after their last tile.
  __device__ __forceinline__ void after_products() const { gemm_rs_sum<Config>(p_, claims()); }

  /// Failed claims of a launch: one of every warp that sums.
  __device__ __forceinline__ std::uint32_t claims() const {
    const std::uint32_t reducing = p_.reduce_ctas * (Config::kThreads / 32) - 1;  // one watches the host
    return reducing + (gridDim.x - p_.reduce_ctas) * Config::kMultiplyWarpgroups * 4;
  }

 private:
  struct Rows {
    std::int32_t owner;
    std::int32_t first;   ///< of the owner's rows
    std::int32_t column;  ///< of tiles
  };
  __device__ __forceinline__ Rows rows_of(int i) const {
    const RasterPlace place = p_.raster.place(cluster() + i * clusters());
    const OwnerSteps::Place step = p_.steps.place(place.row);
    const auto in_cluster = static_cast<std::int32_t>(blockIdx.x % Config::kCluster);
    return {step.owner, (step.block * Config::kCluster + in_cluster) * Config::kTileM, place.column};
  }

  // Nothing is kept: the multiplying warps would carry it through their products, and have no register to
  // spare.
  __device__ __forceinline__ std::int32_t cluster() const {
    return (static_cast<std::int32_t>(blockIdx.x) - p_.reduce_ctas) / Config::kCluster;
  }
  __device__ __forceinline__ std::int32_t clusters() const {
    return (static_cast<std::int32_t>(gridDim.x) - p_.reduce_ctas) / Config::kCluster;
  }

  const GemmRsParameters& p_;
};

/// One warp of CTA 0. A launch ends only when it has seen a word of this launch from every rank: the two
/// parities of slots rest on it. Owners with rows wait for tiles; those without get, and wait for, a word
/// for nothing.
__device__ __forceinline__ void gemm_rs_empty(const GemmRsParameters& p, std::uint64_t epoch) {
  const auto rank = static_cast<std::int32_t>(threadIdx.x % 32);
  if (rank < p.steps.world && p.rows_of[rank] == 0)
    ptx::st_release_sys(p.ready_there[rank], PushReducePlan::count(epoch));
  if (p.own_rows == 0) (void)gemm_rs_wait_tile(p, epoch, 0);
}

/// intra_comm: a CTA that does nothing but sum. The last warp of CTA 0 watches the host instead.
template <class Config>
__device__ __forceinline__ void gemm_rs_intra_comm(const GemmRsParameters& p) {
  const std::uint64_t epoch = p.control->epoch;  // advanced only when every CTA has ended
  const bool last_out = blockIdx.x == 0;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (last_out && warp == 0) gemm_rs_empty(p, epoch);
  if (last_out && warp == Config::kThreads / 32 - 1) {
    relay_host(*p.control, p.host, {}, gridDim.x - 1);
  } else {
    gemm_rs_sum<Config>(p, GemmRsSchedule<Config>(p).claims());
  }
  if (last_out) {
    end_launch(*p.control, epoch);
  } else {
    end_cta(*p.control);
  }
}

template <class Config>
__global__ __launch_bounds__(Config::kThreads,
                             1) void gemm_rs_kernel(const __grid_constant__ GemmRsParameters p) {
  extern __shared__ __align__(1024) std::byte memory[];
  if (static_cast<std::int32_t>(blockIdx.x) < p.reduce_ctas) {
    gemm_rs_intra_comm<Config>(p);
  } else {
    sm90_gemm(GemmRsSchedule<Config>(p), *reinterpret_cast<Sm90Shared<Config>*>(memory));
    end_cta(*p.control);
  }
}

}  // namespace mkernel::kernels
