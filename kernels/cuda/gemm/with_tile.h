// From a tile that a plan has chosen to the code that is compiled for it.
#pragma once

#include <cstdint>
#include <string>

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

}  // namespace mkernel::kernels
