// The tiles that the GEMM body is built for, and which one a shape gets. Pure functions.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/base/types.h"
#include "kernels/plan/raster.h"
#include "proto/abi/host_device.h"

namespace mkernel::kernels {

struct Machine;

/// What the parameters of a kernel hold: ranks of a group, ranks of a node, nodes.
inline constexpr std::int32_t kMaxKernelRanks = 64, kMaxNodeRanks = 16, kMaxKernelNodes = 16;

/// Rows x columns of one CTA's tile.
enum class Sm90Tile : std::uint32_t { k128x256 = 0, k256x128 = 1, k128x128 = 2, k128x64 = 3 };
inline constexpr Sm90Tile kSm90Tiles[] = {Sm90Tile::k128x256, Sm90Tile::k256x128, Sm90Tile::k128x128,
                                          Sm90Tile::k128x64};
inline constexpr int kSm90TileK = 64;

constexpr int tile_rows(Sm90Tile tile) {
  return tile == Sm90Tile::k256x128 ? 256 : 128;
}
constexpr int tile_columns(Sm90Tile tile) {
  return tile == Sm90Tile::k128x256 ? 256 : tile == Sm90Tile::k128x64 ? 64 : 128;
}
/// CTAs of a stacked cluster.
constexpr int tile_cluster(Sm90Tile tile) {
  return tile == Sm90Tile::k128x64 ? 1 : 2;
}

/// A tile as plans see it: one of the GEMM body's, or one of a size that suits another executor.
struct TileSize {
  std::int32_t rows = 0;
  std::int32_t columns = 0;
  std::int32_t cluster = 1;  ///< CTAs of a stacked cluster

  constexpr TileSize(std::int32_t rows_, std::int32_t columns_, std::int32_t cluster_)
      : rows(rows_), columns(columns_), cluster(cluster_) {}
  constexpr TileSize(Sm90Tile tile)  // NOLINT(google-explicit-constructor): each of them is a tile size
      : TileSize(tile_rows(tile), tile_columns(tile), tile_cluster(tile)) {}
  friend constexpr bool operator==(const TileSize&, const TileSize&) = default;

  /// Rows of a cluster's tiles together: a row block.
  constexpr std::int32_t block_rows() const { return rows * cluster; }
};
/// How the two CTAs of a cluster lie: one below the other, sharing b, or side by side, sharing a. Stacked
/// loads less (tiles are wide rather than high); side by side, a last and nearly empty row of tiles costs
/// half as much.
enum class Sm90Cluster : std::uint32_t { kStacked = 0, kSideBySide = 1 };

constexpr int cluster_rows(const TileSize& tile, Sm90Cluster cluster) {
  return cluster == Sm90Cluster::kStacked ? tile.cluster : 1;
}
constexpr int cluster_columns(Sm90Cluster cluster) {
  return cluster == Sm90Cluster::kStacked ? 1 : 2;
}

/// Rows of the boxes in which a is loaded, when no tile of the product has more than `most_rows`. Rows that a
/// box has behind the matrix would cost more than rows do (tests/perf/notes.md). CTAs side by side load half
/// of the rows each; the second half begins where the swizzle does, at a multiple of eight rows.
constexpr std::int32_t a_box_rows(const TileSize& tile, Sm90Cluster cluster = Sm90Cluster::kStacked,
                                  std::int64_t most_rows = std::numeric_limits<std::int64_t>::max()) {
  const std::int32_t rows = most_rows < tile.rows ? static_cast<std::int32_t>(most_rows) : tile.rows;
  return cluster == Sm90Cluster::kStacked ? rows : (rows + 15) / 16 * 8;
}

/// Whether the body by itself (cuda/gemm/gemm_sm90.h) has lower boxes for fewer rows than a tile has.
constexpr bool fits_boxes(const TileSize& tile) {
  return tile.rows * tile.columns <= 128 * 128;
}

/// Whether what whole waves of tiles leave over may be cut into narrow tiles (plan/tile_assignment.h), and
/// how wide.
inline constexpr int kSm90TailColumns = 64;
constexpr bool has_tail(const TileSize& tile) {
  return tile.rows == 128 && tile.columns > kSm90TailColumns;
}

constexpr std::int32_t tail_parts(const TileSize& tile) {
  return tile.columns / kSm90TailColumns;
}

/// How the CTAs of a cluster lie for the narrow tiles of its tail: side by side when its tiles are large,
/// since a narrow tile reads more rows of a than columns of b. Smaller tiles are for few rows, too, which lie
/// in the upper CTA's tile alone: side by side, half of the parts would have none.
constexpr Sm90Cluster tail_cluster(const TileSize& tile, Sm90Cluster cluster) {
  return tile.cluster == 1 || fits_boxes(tile) ? cluster : Sm90Cluster::kSideBySide;
}

/// Where the narrow tiles of a part lie, one of each CTA of the cluster.
struct Sm90TailParts {
  struct Place {
    std::int32_t row, column;  ///< of the cluster tile
  };

  std::int32_t rows;             ///< of a tile
  std::int32_t columns;          ///< of a cluster tile
  std::int32_t stacked, beside;  ///< CTAs

  MK_HOST_DEVICE constexpr Place place(std::int32_t part, std::int32_t cta) const {
    const std::int32_t width = beside * kSm90TailColumns, across = columns / width;
    return {(part / across * stacked + cta % stacked) * rows,
            part % across * width + cta / stacked * kSm90TailColumns};
  }
};
constexpr Sm90TailParts tail_parts_of(const TileSize& tile, Sm90Cluster cluster) {
  const std::int32_t ctas = cluster_rows(tile, cluster) * cluster_columns(cluster);
  const std::int32_t beside = cluster_columns(tail_cluster(tile, cluster));
  return {tile.rows, tile.columns * cluster_columns(cluster), ctas / beside, beside};
}

/// As many as fit beside 32 KiB for the output.
constexpr int tile_stages(Sm90Tile tile) {
  return (227 - 33) * 1024 / ((tile_rows(tile) + tile_columns(tile)) * kSm90TileK * 2);
}

/// The loads (boxes) of an operand, shared by `parts` CTAs of a cluster: each loads as many as the others,
/// and of fewer boxes than CTAs the last CTA all.
struct Sm90Boxes {
  int boxes, parts;

  MK_HOST_DEVICE constexpr int each() const { return (boxes + parts - 1) / parts; }
  /// Of those of CTA `part`.
  MK_HOST_DEVICE constexpr int first(int part) const { return part * boxes / parts; }
  MK_HOST_DEVICE constexpr bool none(int part) const { return boxes < parts && part < parts - 1; }
};

/// How a product is cut and spread over the SMs.
struct Sm90Plan {
  TileSize tile = Sm90Tile::k128x256;
  Raster raster;          ///< of cluster tiles: the tiles of the CTAs of a cluster
  std::int32_t ctas = 0;  ///< a multiple of the cluster; each computes every (ctas / cluster)-th cluster tile
  Sm90Cluster cluster = Sm90Cluster::kStacked;
  std::int32_t whole =
      0;  ///< cluster tiles that are computed whole: those after them are the tail of the assignment

  /// Of a product of `m` rows by itself. Large tiles are for many rows, and their code does not look.
  std::int32_t a_box_rows(std::int64_t m) const {
    return kernels::a_box_rows(tile, cluster, fits_boxes(tile) ? m : tile.rows);
  }
  std::int32_t cluster_ctas() const { return cluster_rows(tile, cluster) * cluster_columns(cluster); }
  std::int32_t clusters() const { return ctas / cluster_ctas(); }
};

/// Cycles that an SM needs for `columns` columns of a tile (all of them, or kSm90TailColumns), all SMs at
/// work.
double tile_cycles(const Machine& machine, std::int64_t k, const TileSize& tile, std::int32_t columns,
                   std::int32_t a_box_rows, Sm90Cluster cluster = Sm90Cluster::kStacked);

/// Cycles of a whole product, as far as tensor cores and L2 bound it.
double estimated_cycles(const GemmShape& shape, const Machine& machine, const Sm90Plan& plan);

/// Without tail: the stacked tile with the smallest estimated time on `machine`, its order, and
/// as many CTAs as are of use. m, n, k >= 1.
Sm90Plan plan_sm90(const GemmShape& shape, const Machine& machine);
/// The same for a tile that the caller has chosen.
Sm90Plan plan_sm90(const GemmShape& shape, const Machine& machine, const TileSize& tile,
                   Sm90Cluster cluster = Sm90Cluster::kStacked);
/// `plan` with the tail that makes it fastest: what its last whole wave leaves over, or none.
Sm90Plan with_best_tail(const GemmShape& shape, const Machine& machine, Sm90Plan plan);
/// The best of both kinds of clusters, with or without tail; bands as suit the number of tiles.
Sm90Plan plan_sm90_any_cluster(const GemmShape& shape, const Machine& machine);

}  // namespace mkernel::kernels
