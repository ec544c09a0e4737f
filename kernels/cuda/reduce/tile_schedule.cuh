// compute, where every owner has tiles of its own: which tiles of the partial product this CTA computes, and
// which ranks it signals.
#pragma once

#include <cstdint>

#include "kernels/cuda/comm/paced_links.cuh"
#include "kernels/cuda/gemm/sm90_body.cuh"
#include "kernels/cuda/gemm/sm90_share.cuh"
#include "kernels/cuda/ptx/global.cuh"
#include "kernels/cuda/reduce/claims.cuh"
#include "kernels/cuda/reduce/tile_reduce_parameters.h"
#include "kernels/cuda/sync/trace.cuh"
#include "kernels/plan/push_reduce_plan.h"

namespace mkernel::kernels {

/// The schedule's arithmetic needs more registers in the loading thread than a plain product's.
template <Sm90Tile kTile, DataType kInput, Layout kLayoutB>
struct TileReduceConfig : Sm90Config<kTile, kInput, kLayoutB> {
  static constexpr int kProducerRegisters = 56;
  static constexpr int kMultiplyRegisters = 224;
  static constexpr bool kSharedTiles = false;
};

/// Warps of CTA 0 that put, over several nodes.
template <class Operation>
__device__ __forceinline__ int senders(const TileReduceParameters& p) {
  return p.units.others > 0 ? Operation::kSenders : 0;
}

/// Warps of a launch that get to spare_warp(): those of the CTAs that only sum, but for the ones of CTA 0
/// that have other duties, and all multiplying ones.
template <class Config, class Operation>
__device__ __forceinline__ std::uint32_t spare_warps(const TileReduceParameters& p) {
  const std::uint32_t reducing = p.reduce_ctas * (Config::kThreads / 32) - 1 - senders<Operation>(p);
  return reducing + multiplying_warps<Config>(p);
}

/// A schedule of the GEMM body.
template <class Config, class Operation>
class TileReduceSchedule {
 public:
  using Parameters = typename Operation::Parameters;
  static constexpr bool kWaits = false;

  explicit __device__ __forceinline__ TileReduceSchedule(const Parameters& p)
      : p_(p), stored_to_(p.alone() ? &p.direct_c : &p.slots[p.half() * p.tiles.turns()]) {}

  __device__ __forceinline__ bool stopped() const { return p_.endpoint.lent->stopped != 0; }
  __device__ __forceinline__ int tiles() const { return Share::tiles(p_.tiles.tiles(), p_.reduce_ctas); }
  __device__ __forceinline__ int k_blocks() const { return p_.k_blocks; }

  __device__ __forceinline__ Sm90TilePlace tile(int i) const {
    const Rows rows = rows_of(i);
    // Owners have unequal numbers of rows. Beyond the last one TMA reads zeros and writes nothing; the rows
    // of the next owner, which the tile may reach into, are computed and not written.
    constexpr std::int32_t kBeyond = kMostRows;
    const OwnerOnDevice owner = p_.owner(rows.turn);
    const bool any = rows.first < owner.rows;
    const int column = rows.column * Config::kTileN;
    return {&p_.a,  &p_.b, stored_to_ + rows.turn,     any ? owner.first_row + rows.first : kBeyond,
            column, 0,     any ? rows.first : kBeyond, column};
  }
  __device__ __forceinline__ const DeviceTrace& trace() const { return p_.endpoint.trace; }

  /// The tile lies in its slot at the reducer: says so there.
  __device__ __forceinline__ void after_store(int i) const {
    if (p_.alone()) return;
    const Rows rows = rows_of(i);
    const OwnerOnDevice owner = p_.owner(rows.turn);
    if (rows.first >= owner.rows) return;
    std::uint64_t* ready =
        owner.ready_there + (rows.first / Config::kTileM) * p_.tiles.raster.columns() + rows.column;
    const std::uint64_t count = PushReducePlan::count(p_.endpoint.control->epoch);
    if (rows.turn % p_.sources() == p_.sources() - 1) {  // this rank reduces it
      ptx::st_release_gpu(ready, count);
    } else {
      const std::int32_t stored = min(Config::kTileM, owner.rows - rows.first);
      await_links(p_.links, std::uint64_t{2} * Config::kTileN * stored);
      ptx::st_release_sys(ready, count);
    }
  }

  /// Multiplying warps help with the sums after their last tile.
  __device__ __forceinline__ void after_products() const {
    if (p_.alone()) return;
    Operation::template spare_warp<Config>(p_, spare_warps<Config, Operation>(p_));
  }

 protected:
  using Share = Sm90Share<Config>;

  const Parameters& p_;
  const TensorMap* stored_to_;  ///< by turn; of a rank alone, of whose turn there is one

 private:
  struct Rows {
    std::int32_t turn;    ///< of the owner
    std::int32_t first;   ///< of the owner's rows
    std::int32_t column;  ///< of tiles
  };
  __device__ __forceinline__ Rows rows_of(int i) const {
    const OwnerTiles::Place place = p_.tiles.place(Share::index(p_.reduce_ctas, i));
    return {place.turn, Share::first_row(place.block), place.column};
  }
};

}  // namespace mkernel::kernels
