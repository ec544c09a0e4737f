// How the two CTAs of a cluster share the tiles of a group of rows. A pure function, the same on host and
// device.
#pragma once

#include <cstdint>

#include "proto/abi/host_device.h"

namespace mkernel::kernels {

/// The tiles that a cluster computes together. Above each other: of blocks `block` and `block + 1`, both in
/// `column`. Side by side: of `block` alone, in columns `column` and `column + 1`.
struct TilePair {
  std::int32_t block = 0;  ///< of the first CTA
  std::int32_t column = 0;
  bool side_by_side = false;

  MK_HOST_DEVICE std::int32_t second_block() const { return side_by_side ? block : block + 1; }
  MK_HOST_DEVICE std::int32_t second_column() const { return side_by_side ? column + 1 : column; }
};

/// Pair `index` of the tiles that `blocks` blocks of rows have in columns 2 * `columns` and 2 * `columns` +
/// 1: there are `blocks` of them. In one column after the other two and two blocks lie above each other; the
/// last block of an odd number is alone, so its tiles in both columns are a pair.
MK_HOST_DEVICE inline TilePair tile_pair(std::int32_t index, std::int32_t blocks, std::int32_t columns) {
  const std::int32_t stacked = blocks / 2;
  if (index >= 2 * stacked) return {2 * stacked, 2 * columns, true};
  const std::int32_t column = index >= stacked ? 1 : 0;
  return {2 * (index - column * stacked), 2 * columns + column, false};
}

/// `blocks` blocks of rows (at least one) are cut into bands of equal size, of `most` blocks at most (even):
/// how many blocks a band has. One band goes through all columns before the next one begins, so that rows
/// which fit the L2 are read from memory once.
MK_HOST_DEVICE inline std::int32_t blocks_of_band(std::int32_t blocks, std::int32_t most) {
  const std::int32_t bands = (blocks + most - 1) / most;
  return ((blocks + bands - 1) / bands + 1) / 2 * 2;
}

/// The most blocks of a band, of `block_rows` rows of `k` elements of 16 bits each: about half of the L2.
/// What they are multiplied by streams through the rest.
constexpr std::int32_t most_blocks_of_band(std::int64_t block_rows, std::int64_t k) {
  constexpr std::int64_t kBytes = std::int64_t{24} << 20;
  const std::int64_t pairs = kBytes / (2 * block_rows * k * 2);
  return static_cast<std::int32_t>(2 * (pairs > 1 ? pairs : 1));
}

/// Pair `index` of all tiles of `blocks` blocks of rows in `column_pairs` pairs of columns, in bands of
/// `most` blocks at most.
MK_HOST_DEVICE inline TilePair banded_tile_pair(std::int32_t index, std::int32_t blocks,
                                                std::int32_t column_pairs, std::int32_t most) {
  const std::int32_t of_band = blocks_of_band(blocks, most);
  const std::int32_t first = index / (of_band * column_pairs) * of_band;
  const std::int32_t here = blocks - first < of_band ? blocks - first : of_band;
  const std::int32_t inside = index - first * column_pairs, columns = inside / here;
  TilePair pair = tile_pair(inside - columns * here, here, columns);
  pair.block += first;
  return pair;
}

}  // namespace mkernel::kernels
