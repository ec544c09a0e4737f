// Plan of a product whose tiles are summed over ranks: who computes which tile when, who sums, what crosses
// nodes. GEMM+RS is just that; GEMM+AR hands the sums on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/lent_workspace.h"
#include "kernels/base/types.h"
#include "kernels/plan/machine.h"
#include "kernels/plan/push_reduce_plan.h"
#include "kernels/plan/put_partials_plan.h"
#include "kernels/plan/raster.h"
#include "kernels/plan/reduce_units.h"
#include "kernels/plan/shared_tiles.h"
#include "kernels/plan/sm90_tile.h"
#include "kernels/plan/topology.h"

namespace mkernel::kernels {

/// Owners share tiles where none has more rows than this, and of tiles those that are no higher.
inline constexpr std::int32_t kMostSharedRows = 128;

/// Overrides; the same on every rank.
struct TileReduceOptions {
  std::optional<TileSize> tile;
  std::int32_t reduce_ctas = 0;  ///< that do nothing but sum; 0 = by shape
  double link_gbytes = 0;        ///< as GemmPlanOptions' of this name
  std::optional<bool> to_all;    ///< of GEMM+AR with few rows on one node (PushReducePlan); not set = by cost
  std::int32_t sms = 0;          ///< no more of the device's, so that ranks can share it; 0 = all
  std::string machine;           ///< as GemmPlanOptions' of this name
};

/// Pure; the same on every rank but for `owners`. Tiles are those of the GEMM body, cut per owner: a row
/// block is the rows of one cluster (tile_rows x tile_cluster) of one owner. Where owners have few
/// rows (kMostSharedRows), they share tiles.
struct TileReducePlan {
  TileSize tile = Sm90Tile::k128x256;
  std::int32_t reduce_ctas = 0;      ///< the first of the grid; a multiple of the cluster
  std::int32_t compute_ctas = 0;     ///< a multiple of the cluster
  std::vector<std::int32_t> owners;  ///< by turn (OwnerTiles); this rank last
  OwnerTiles tiles;                  ///< that every rank computes, unless owners share tiles
  SharedTiles shared;                ///< that every rank computes then
  ReduceUnits units;                 ///< of the rows of an owner with most
  PushReducePlan reduce;
  PutPartialsPlan partials;
  Machine machine;  ///< that it was made for

  /// What one CTA computes of a cluster tile.
  struct Tile {
    struct Part {
      std::int32_t turn = 0;            ///< of the owner
      std::int64_t begin = 0, end = 0;  ///< of the owner's rows; not empty
    };
    std::int64_t first_row = 0;  ///< of the product
    std::int32_t rows = 0;       ///< those of all parts together
    std::int32_t column = 0;     ///< of tiles
    std::vector<Part> parts;     ///< in the order in which they are sent; none: the tile is empty
  };

  std::int32_t rank() const { return owners.back(); }
  /// Cluster tiles that every rank computes.
  std::int32_t cluster_tiles() const { return shared.any() ? shared.tiles() : tiles.tiles(); }
  /// Waves of them beside so many CTAs that only sum.
  std::int64_t waves(std::int32_t summing) const;
  /// Of cluster tile `index` (0 .. cluster_tiles() - 1) the tile of CTA `in_cluster`.
  Tile tile_at(std::int32_t index, std::int32_t in_cluster) const;
  /// Rows of a box of a: those of the highest of the tiles that owners share, else those of a whole tile.
  std::int32_t a_box_rows() const;
  /// The word of a tile whose first row is row `row` of an owner's, counted from ready_offset().
  std::int64_t ready_word(std::int64_t row, std::int32_t column) const {
    return row / tile.rows * units.raster.columns() + column;
  }
  /// Rows of an owner that lie in the same 64 rows of a shared tile as the end of the owner before it. A tile
  /// is stored 64 rows at a time, and no store begins in front of an owner's first row.
  std::int64_t head_rows(std::int32_t owner) const;
  /// Of an owner: its units that hold rows, and the puts of each launch that bring them from another node.
  std::int32_t packed_units(std::int32_t owner) const {
    return units.packed(units.units(), reduce.rows_of(owner));
  }
  std::int32_t chunks(std::int32_t owner) const { return partials.chunks(packed_units(owner)); }
  std::int32_t most_chunks() const { return partials.chunks(partials.units); }
  /// Of GEMM+AR: whether kernels mark the sums that owners send on (PushSumsPlan), instead of a word for each
  /// unit behind a fence. On one node where owners share tiles: of few rows the copies are what a launch ends
  /// with; and where the marks take no more memory than marked slots may. Slots that owners share tiles of
  /// are marked (PushReducePlan) where sums are, and the product takes one wave: of several, CTAs that only
  /// sum begin under the product, which they would slow down by reading until data come.
  bool marks_sums() const;
  /// Ranks of this local index on the other nodes, by node turn.
  std::vector<std::int32_t> rail_peers() const;
  /// Bytes that this rank puts in every launch: the partials of its rail peers.
  std::uint64_t wire_bytes() const;
  std::uint64_t word_bytes() const { return reduce.word_bytes(); }
  std::uint64_t data_bytes() const { return partials.end(); }
  /// The same of kernels, whose marked slots lie behind the words. Of the lent workspace these slots need
  /// only that launches take turns.
  std::uint64_t kernel_word_bytes() const { return reduce.marked ? reduce.marked_end() : word_bytes(); }
  std::uint64_t kernel_data_bytes() const { return reduce.marked ? kLentAlignment : data_bytes(); }
  /// Of the group's channels, between rail peers only: partials.
  std::uint32_t lanes() const { return units.others > 0 ? 1 : 0; }

  /// `device`: what it runs on. Errors: check_on_machine(), with_paced_links(); kInvalidArgument of `to_all`
  /// where it cannot be.
  static Result<TileReducePlan> make(OpKind kind, const GemmShape& shape, const Topology& topology,
                                     std::uint32_t rank, const Machine& device,
                                     const TileReduceOptions& options = {});

 private:
  Tile shared_tile_at(std::int32_t index, std::int32_t in_cluster) const;
};

/// Seconds of a launch on the plan's machine, of kGemmRs or kGemmAr: the product in waves of tiles, or what
/// memory, the links or the wire (Machine::nic) carry, whichever takes longest. Up to 25 % less than what was
/// measured on four H200s (tests/perf/results): links that tiles and sums share are slower, and sums that are
/// left for the end of the product are counted only where owners share tiles, which has few waves. Of shared
/// tiles 10 to 20 % less.
double estimated_seconds(OpKind kind, const GemmShape& shape, const TileReducePlan& plan);

}  // namespace mkernel::kernels
