// A product whose tiles are summed over ranks, on the cuda executor: what the CTAs of such a kernel do. The
// operation says what becomes of the sums:
//
//   struct Operation {
//     using Parameters = ...;  // derived from TileReduceParameters
//     // A whole warp that has nothing else to do: sums own rows (sum_slots.cuh), and does what follows,
//     until
//     // nothing is left. `warps` of them are called in a launch. No tile waits for it.
//     template <class Config>
//     static void spare_warp(const Parameters& p, std::uint32_t warps);
//   };
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/gemm/sm90_body.cuh"
#include "kernels/gemm/sm90_share.cuh"
#include "kernels/ops/exchange/push_reduce_plan.h"
#include "kernels/ops/exchange/sum_slots.cuh"
#include "kernels/ops/exchange/tile_reduce_parameters.h"
#include "kernels/ptx/global.cuh"
#include "kernels/sync/device_trace.cuh"
#include "kernels/sync/launch_end.cuh"
#include "kernels/sync/relay.cuh"
#include "kernels/sync/wait.cuh"

namespace mkernel::kernels {

/// The schedule's arithmetic needs more registers in the loading thread than a plain product's.
template <Sm90Tile kTile, DataType kInput, Layout kLayoutB>
struct TileReduceConfig : Sm90Config<kTile, kInput, kLayoutB, matrix_element(kInput)> {
  static constexpr int kProducerRegisters = 56;
  static constexpr int kMultiplyRegisters = 224;
};

/// Warps of a launch that get to spare_warp(): those of the CTAs that only sum, but for the one that watches
/// the host, and all multiplying ones.
template <class Config>
__device__ __forceinline__ std::uint32_t spare_warps(const TileReduceParameters& p) {
  const std::uint32_t reducing = p.reduce_ctas * (Config::kThreads / 32) - 1;
  return reducing + (gridDim.x - p.reduce_ctas) * Config::kMultiplyWarpgroups * 4;
}

/// compute: which tiles of the partial product this CTA computes, and who is told.
template <class Config, class Operation>
class TileReduceSchedule {
 public:
  using Parameters = typename Operation::Parameters;
  static constexpr bool kWaits = false;

  explicit __device__ __forceinline__ TileReduceSchedule(const Parameters& p) : p_(p) {}

  __device__ __forceinline__ int tiles() const { return Share::tiles(p_.raster, p_.reduce_ctas); }
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
  __device__ __forceinline__ const DeviceTrace& trace() const { return p_.trace; }

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

  /// Multiplying warps help with the sums after their last tile.
  __device__ __forceinline__ void after_products() const {
    Operation::template spare_warp<Config>(p_, spare_warps<Config>(p_));
  }

 private:
  using Share = Sm90Share<Config>;
  struct Rows {
    std::int32_t owner;
    std::int32_t first;   ///< of the owner's rows
    std::int32_t column;  ///< of tiles
  };
  __device__ __forceinline__ Rows rows_of(int i) const {
    const RasterPlace place = Share::place(p_.raster, p_.reduce_ctas, i);
    const OwnerSteps::Place step = p_.steps.place(place.row);
    return {step.owner, Share::first_row(step.block), place.column};
  }

  const Parameters& p_;
};

/// One warp of CTA 0. A launch ends only when it has seen a word of this launch from every rank: the two
/// parities of slots rest on it. Owners with rows wait for tiles; those without get, and wait for, a word
/// for nothing.
__device__ __forceinline__ void exchange_empty(const TileReduceParameters& p, std::uint64_t epoch) {
  const auto rank = static_cast<std::int32_t>(threadIdx.x % 32);
  if (rank < p.steps.world && p.rows_of[rank] == 0)
    ptx::st_release_sys(p.ready_there[rank], PushReducePlan::count(epoch));
  if (p.own_rows == 0) (void)wait_tile(p, epoch, 0);
}

/// intra_comm: a CTA of spare warps only. The last warp of CTA 0 watches the host instead.
template <class Config, class Operation>
__device__ __forceinline__ void tile_reduce_intra_comm(const typename Operation::Parameters& p) {
  const std::uint64_t epoch = p.control->epoch;  // advanced only when every CTA has ended
  const bool last_out = blockIdx.x == 0;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (last_out && warp == 0) exchange_empty(p, epoch);
  if (last_out && warp == Config::kThreads / 32 - 1) {
    relay_host(*p.control, p.host, {}, gridDim.x - 1);
  } else {
    Operation::template spare_warp<Config>(p, spare_warps<Config>(p));
  }
  if (last_out) {
    end_launch(*p.control, epoch);
  } else {
    end_cta(*p.control);
  }
}

/// The whole kernel; `memory`: Sm90Shared<Config>.
template <class Config, class Operation>
__device__ __forceinline__ void tile_reduce(const typename Operation::Parameters& p, std::byte* memory) {
  begin_role(p.trace);
  if (static_cast<std::int32_t>(blockIdx.x) < p.reduce_ctas) {
    tile_reduce_intra_comm<Config, Operation>(p);
    end_role(p.trace, DeviceRole::kIntraComm);
  } else {
    sm90_gemm(TileReduceSchedule<Config, Operation>(p), *reinterpret_cast<Sm90Shared<Config>*>(memory));
    end_cta(*p.control);
    end_role(p.trace, DeviceRole::kCompute);
  }
}

}  // namespace mkernel::kernels
