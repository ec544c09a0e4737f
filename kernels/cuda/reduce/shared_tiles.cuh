// compute, where owners share tiles (plan/shared_tiles.h): which tiles this CTA computes, where their rows
// go, and which ranks it signals.
#pragma once

#include <cstdint>

#include "kernels/cuda/gemm/sm90_body.cuh"
#include "kernels/cuda/ptx/fence.cuh"
#include "kernels/cuda/ptx/global.cuh"
#include "kernels/cuda/reduce/tile_schedule.cuh"
#include "kernels/plan/push_reduce_plan.h"
#include "kernels/plan/shared_tiles.h"

namespace mkernel::kernels {

/// Like TileReduceConfig, of kernels whose tiles hold rows of several owners.
template <Sm90Tile kTile, DataType kInput, Layout kLayoutB>
struct SharedTilesConfig : TileReduceConfig<kTile, kInput, kLayoutB> {
  static constexpr bool kSharedTiles = true;
};

/// A schedule of the GEMM body.
template <class Config, class Operation>
class SharedTilesSchedule : public TileReduceSchedule<Config, Operation> {
  using Base = TileReduceSchedule<Config, Operation>;
  using Base::p_, Base::stored_to_;
  using typename Base::Share;

 public:
  /// c_row counts from the first row of the product.
  struct Place : Sm90TilePlace {
    SharedTiles::Rows rows;
  };

  explicit __device__ __forceinline__ SharedTilesSchedule(const typename Base::Parameters& p)
      : Base(p), epoch_(p.endpoint.control->epoch) {}

  __device__ __forceinline__ int tiles() const { return Share::tiles(p_.shared.tiles(), p_.reduce_ctas); }

  __device__ __forceinline__ Place tile(int i) const {
    constexpr std::int32_t kBeyond = kMostRows;  // TMA reads zeros there
    const RasterPlace place = p_.shared.raster.place(Share::index(p_.reduce_ctas, i));
    const SharedTiles::Rows rows = p_.shared.rows(Share::first_row(place.row) / Config::kTileM);
    const int row = rows.begin < rows.end ? owner(rows.begin).first_row + rows.skipped : kBeyond;
    const int column = place.column * Config::kTileN;
    return {{&p_.a, &p_.b, stored_to_, row, column, 0, row, column}, rows};
  }

  __device__ __forceinline__ int a_box_rows(const Place& tile) const {
    return tile.a_row < p_.rows ? p_.a_box_rows : 0;
  }

  /// The 64 rows of the product from `row` on, for every owner that has any of them. An owner's matrix has
  /// its rows and no more, so TMA leaves out those of its neighbours below. An owner whose rows begin further
  /// down has a map of its head, the rows that lie in the same 64.
  template <class Store>
  __device__ __forceinline__ void for_each_c(const Place& tile, int row, const Store& store) const {
    for_each_owner(tile.rows, [&](std::int32_t turn, const OwnerOnDevice& owner) {
      const int first = row - owner.first_row;
      if (owner.rows == 0 || first >= owner.rows || first + 64 <= 0) return;
      if (first >= 0) {
        store(stored_to_ + turn, first, 0);
      } else {
        store(stored_to_ + 2 * p_.tiles.turns() + turn, 0, -first);
      }
    });
  }

  /// The tile lies in the slots of its owners at their reducers: says so there, behind one fence for all.
  /// Marked slots need no word.
  __device__ __forceinline__ void after_store(int i) const {
    if (p_.marked) return;
    const Place place = tile(i);
    const std::int32_t word =
        place.rows.skipped / Config::kTileM * p_.shared.raster.columns() + place.c_column / Config::kTileN;
    const std::uint64_t count = PushReducePlan::count(epoch_);
    const ptx::SysReleased released = ptx::fence_acq_rel_sys();
    for_each_owner(place.rows, [&](std::int32_t, const OwnerOnDevice& owner) {
      if (place.rows.skipped < owner.rows) ptx::st_relaxed_sys(owner.ready_there + word, count, released);
    });
  }

  /// From marked slots only warps sum that have multiplied. Others would begin while the product still needs
  /// the memory, and read all the time.
  __device__ __forceinline__ void after_products() const {
    if (p_.marked) return Operation::template sum_marked<Config>(p_);
    Base::after_products();
  }

 private:
  const std::uint64_t epoch_;  ///< read early: when a tile is stored, sums wait for what comes of it

  __device__ __forceinline__ std::int32_t turn_of(std::int32_t owner) const {
    return p_.tiles.turn_of(owner, static_cast<std::int32_t>(p_.endpoint.rank));
  }
  __device__ __forceinline__ OwnerOnDevice owner(std::int32_t rank) const { return p_.owner(turn_of(rank)); }

  template <class Work>
  __device__ __forceinline__ void for_each_owner(const SharedTiles::Rows& rows, const Work& work) const {
#pragma unroll 1
    for (std::int32_t i = 0; i < rows.end - rows.begin; ++i) {
      const std::int32_t turn = turn_of(rows.owner(i, static_cast<std::int32_t>(p_.endpoint.rank)));
      work(turn, p_.owner(turn));
    }
  }
};

}  // namespace mkernel::kernels
