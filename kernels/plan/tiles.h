// How matrices are cut: tiles of a matrix, chunks of a row of items. Pure functions, the same on every rank.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/base/types.h"

namespace mkernel::kernels {

/// Largest tile that the plans choose: one BLAS call that reaches the speed of a large one.
inline constexpr std::int64_t kTileRows = 256;
inline constexpr std::int64_t kTileColumns = 1024;
/// Payload that a put aims at: large enough for the copy engines and for EFA, small enough to overlap.
inline constexpr std::int64_t kChunkBytes = std::int64_t{1} << 20;

constexpr std::int64_t ceil_div(std::int64_t value, std::int64_t by) {
  return (value + by - 1) / by;
}

struct Tile {
  Range rows;
  Range columns;
  std::int64_t elements() const { return rows.size() * columns.size(); }
};

/// A matrix cut into tiles, numbered row of tiles by row of tiles; the last ones may be smaller.
struct TileGrid {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t tile_rows = 1;
  std::int64_t tile_columns = 1;

  std::int64_t tile_columns_count() const { return ceil_div(columns, tile_columns); }
  std::int64_t tiles() const { return ceil_div(rows, tile_rows) * tile_columns_count(); }
  Tile tile(std::int64_t index) const {
    const std::int64_t row = index / tile_columns_count() * tile_rows;
    const std::int64_t column = index % tile_columns_count() * tile_columns;
    return {{row, std::min(rows, row + tile_rows)}, {column, std::min(columns, column + tile_columns)}};
  }
  /// Elements before tile `index` when each tile lies packed behind the one before it; rows x columns for
  /// index == tiles().
  std::int64_t packed_offset(std::int64_t index) const {
    if (index >= tiles()) return rows * columns;
    const Tile at = tile(index);
    return at.rows.begin * columns + at.rows.size() * at.columns.begin;
  }
};

/// `items` in order, cut into chunks of `per_chunk`. No items are one empty chunk: whoever has nothing to
/// send still says so, and a receiver can count on at least one signal per launch.
struct ChunkSplit {
  std::int64_t items = 0;
  std::int64_t per_chunk = 1;

  std::int64_t chunks() const { return std::max<std::int64_t>(1, ceil_div(items, per_chunk)); }
  Range chunk(std::int64_t index) const {
    return {std::min(items, index * per_chunk), std::min(items, (index + 1) * per_chunk)};
  }
  std::int64_t chunk_of(std::int64_t item) const { return item / per_chunk; }
};

}  // namespace mkernel::kernels
