// Plan of a product whose tiles are summed over ranks: who computes which tile when, who sums, what crosses
// nodes. GEMM+RS is just that; GEMM+AR hands the sums on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/types.h"
#include "kernels/plan/machine.h"
#include "kernels/plan/push_reduce_plan.h"
#include "kernels/plan/put_partials_plan.h"
#include "kernels/plan/raster.h"
#include "kernels/plan/reduce_units.h"
#include "kernels/plan/sm90_tile.h"
#include "kernels/plan/topology.h"

namespace mkernel::kernels {

/// Overrides; the same on every rank.
struct TileReduceOptions {
  std::optional<TileSize> tile;
  std::int32_t reduce_ctas = 0;  ///< that do nothing but sum; 0 = by shape
  std::int32_t sms = 0;          ///< no more of the device's, so that ranks can share it; 0 = all
  std::string machine;           ///< as GemmPlanOptions' of this name
};

/// Pure; the same on every rank but for `owners`. Tiles are those of the GEMM body, cut per owner: a row
/// block is the rows of one cluster (tile_rows x tile_cluster) of one owner.
struct TileReducePlan {
  TileSize tile = Sm90Tile::k128x256;
  std::int32_t reduce_ctas = 0;      ///< the first of the grid; a multiple of the cluster
  std::int32_t compute_ctas = 0;     ///< a multiple of the cluster
  std::vector<std::int32_t> owners;  ///< by turn (OwnerTiles); this rank last
  OwnerTiles tiles;                  ///< that every rank computes
  ReduceUnits units;                 ///< of the rows of an owner with most
  PushReducePlan reduce;
  PutPartialsPlan partials;
  Machine machine;  ///< that it was made for

  std::int32_t rank() const { return owners.back(); }
  /// Whether some owners get nothing: dummy signals then stand for their tiles.
  bool some_without_rows() const { return reduce.rows < reduce.world; }
  /// Of an owner: its units that hold rows, and the puts of each launch that bring them from another node.
  std::int32_t packed_units(std::int32_t owner) const {
    return units.packed(units.units(), reduce.rows_of(owner));
  }
  std::int32_t chunks(std::int32_t owner) const { return partials.chunks(packed_units(owner)); }
  std::int32_t most_chunks() const { return partials.chunks(partials.units); }
  /// Ranks of this local index on the other nodes, by node turn.
  std::vector<std::int32_t> rail_peers() const;
  /// Bytes that this rank puts in every launch: the partials of its rail peers.
  std::uint64_t wire_bytes() const;
  std::uint64_t word_bytes() const { return reduce.word_bytes(); }
  std::uint64_t data_bytes() const { return partials.end(); }
  /// Of the group's channels, between rail peers only: partials.
  std::uint32_t lanes() const { return units.others > 0 ? 1 : 0; }

  /// `machine`: what it runs on. Errors: check_on_machine().
  static Result<TileReducePlan> make(OpKind kind, const GemmShape& shape, const Topology& topology,
                                     std::uint32_t rank, const Machine& machine,
                                     const TileReduceOptions& options = {});
};

/// Seconds of a launch on the plan's machine, of kGemmRs or kGemmAr: the product in waves of tiles, or what
/// the links and the wire (Machine::nic) carry, whichever takes longer. Up to 25 % less than what was
/// measured on four H200s (tests/perf/results): links that tiles and sums share are slower, and sums that are
/// left for the end of the product are not counted.
double estimated_seconds(OpKind kind, const GemmShape& shape, const TileReducePlan& plan);

}  // namespace mkernel::kernels
