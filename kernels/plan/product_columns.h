// The columns of all products of the same rows, side by side in one raster of tiles. Pure, the same on host
// and device.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/base/types.h"
#include "kernels/plan/cuts.h"
#include "proto/abi/host_device.h"

namespace mkernel::kernels {

/// How many products GemmShape asks for: b and the further ones.
constexpr int products_of(const GemmShape& shape) {
  int products = 1;
  while (products <= kMostMoreB && shape.more_n[products - 1] > 0) ++products;
  return products;
}

/// Columns of product 0 (b) or of a further one.
constexpr std::int64_t columns_of(const GemmShape& shape, int product) {
  return product == 0 ? shape.n : shape.more_n[product - 1];
}

constexpr const void* b_of(const GemmArguments& arguments, int product) {
  return product == 0 ? arguments.b : arguments.more_b[product - 1];
}
constexpr void* c_of(const GemmArguments& arguments, int product) {
  return product == 0 ? arguments.c : arguments.more_c[product - 1];
}
/// What errors call them.
inline constexpr const char* kNamesOfB[1 + kMostMoreB] = {"b", "more_b[0]", "more_b[1]", "more_b[2]"};
inline constexpr const char* kNamesOfC[1 + kMostMoreB] = {"c", "more_c[0]", "more_c[1]", "more_c[2]"};

/// Every product begins with a tile of its own, so that no tile has columns of two.
struct ProductColumns {
  std::int32_t tiles = 0;  ///< of all products
  /// The raster's column, in elements, with which further product i begins; no column lies behind it where
  /// there is none.
  std::int32_t begin[kMostMoreB] = {};

  static ProductColumns of(const GemmShape& shape, std::int32_t tile_columns) {
    ProductColumns columns{.tiles = static_cast<std::int32_t>(ceil_div(shape.n, tile_columns))};
    for (int i = 0; i < kMostMoreB; ++i) {
      const bool there = i + 1 < products_of(shape);
      columns.begin[i] = there ? columns.tiles * tile_columns : std::numeric_limits<std::int32_t>::max();
      if (there) columns.tiles += static_cast<std::int32_t>(ceil_div(shape.more_n[i], tile_columns));
    }
    return columns;
  }

  struct Place {
    std::int32_t product;
    std::int32_t column;  ///< of the product's matrix
  };
  /// Of a column of the raster.
  MK_HOST_DEVICE Place place(std::int32_t column) const {
    Place place{0, column};
    for (int i = 0; i < kMostMoreB; ++i)
      if (column >= begin[i]) place = {i + 1, column - begin[i]};
    return place;
  }
};

}  // namespace mkernel::kernels
