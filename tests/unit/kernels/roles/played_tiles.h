// The GEMM tiles and types that whole operations are played with.
#pragma once

#include "kernels/cuda/gemm/with_tile.h"
#include "mkernel/ops.h"
#include "tests/support/require.h"

namespace mkernel::test {

/// In plays of reductions. Tiles of more than 128 x 128 are the same code with other numbers, and half of
/// what there is to compile: under sanitizers, which make that slow, they are not played.
constexpr bool is_played([[maybe_unused]] const kernels::TileSize& tile) {
#if defined(MKERNEL_SANITIZED)
  return tile.rows <= 128 && tile.columns <= 128;
#else
  return true;
#endif
}

/// Calls `with.operator()<tile, type, layout of b>()`, of few combinations, since each is seconds to compile
/// and many more under sanitizers: every tile with bf16 and a row-major b, and those of at most 128 x 128
/// with fp16 and a column-major b. gemm_body_test.cc plays the others. Any other combination fails the test.
template <class With>
void with_played_tile(const kernels::TileSize& tile, const GemmShape& shape, const With& with) {
  using kernels::Sm90Tile;
  const bool row_major = shape.b_layout == Layout::kRowMajor;
  require_ok(kernels::with_tile(tile, "a play", [&]<Sm90Tile kTile>() -> Status {
    if (shape.dtype == DataType::kBf16 && row_major) {
      with.template operator()<kTile, DataType::kBf16, Layout::kRowMajor>();
      return {};
    }
    if constexpr (kTile == Sm90Tile::k128x64 || kTile == Sm90Tile::k128x128) {
      if (shape.dtype == DataType::kF16 && !row_major) {
        with.template operator()<kTile, DataType::kF16, Layout::kColumnMajor>();
        return {};
      }
    }
    return {StatusCode::kInvalidArgument,
            "this tile is not played with this type and layout (played_tiles.h)"};
  }));
}

}  // namespace mkernel::test
