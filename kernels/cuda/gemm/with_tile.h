// From a tile that a plan has chosen, and the types of a shape, to the code that is compiled for them.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/types.h"
#include "kernels/cuda/memory/kernel_types.h"
#include "kernels/plan/sm90_tile.h"
#include "proto/abi/status.h"

namespace mkernel::kernels {

/// Calls `with.operator()<tile>()`, which returns a Status. `who` begins the error for a tile that does not
/// exist.
template <class With>
Status with_tile(const TileSize& tile, const std::string& who, const With& with) {
  if (tile == Sm90Tile::k128x256) return with.template operator()<Sm90Tile::k128x256>();
  if (tile == Sm90Tile::k256x128) return with.template operator()<Sm90Tile::k256x128>();
  if (tile == Sm90Tile::k128x128) return with.template operator()<Sm90Tile::k128x128>();
  if (tile == Sm90Tile::k128x64) return with.template operator()<Sm90Tile::k128x64>();
  return {StatusCode::kInvalidArgument, who + ": tile = " + std::to_string(tile.rows) + "x" +
                                            std::to_string(tile.columns) + ", no kernel is built for it"};
}

/// Calls `with.operator()<type, layout of b>()` for those of `shape`.
template <class With>
auto with_types(const GemmShape& shape, const With& with) {
  const bool row_major = shape.b_layout == Layout::kRowMajor;
  return with_kernel_type(shape.dtype, [&]<DataType kType>() {
    return row_major ? with.template operator()<kType, Layout::kRowMajor>()
                     : with.template operator()<kType, Layout::kColumnMajor>();
  });
}

}  // namespace mkernel::kernels
