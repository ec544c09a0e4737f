// What the feed of the GEMM body hands out (sm90_feed.cuh).
#pragma once

#include <cstdint>

namespace mkernel::kernels {

/// One CTA's tile. Two CTAs of a cluster share b and lie above each other, or share a and lie side by side.
struct alignas(16) Sm90Task {
  static constexpr std::int32_t kEnd = -1;
  /// Rows of a low box of a. The swizzle begins anew with each.
  static constexpr std::int32_t kLowBoxRows = 8;

  std::int32_t product;       ///< kEnd: there are no more tasks
  std::int32_t side_by_side;  ///< not 0: the CTAs share a
  std::int32_t a_row;
  std::int32_t b_matrix;
  std::int32_t b_column;   ///< column of b where the first half of the tile's columns begins
  std::int32_t b_column2;  ///< column of b where the other half begins
  std::int32_t c_column;
  std::int32_t rows;   ///< rows of the tile that are stored
  std::int32_t block;  ///< number of the block of rows, for the schedule alone
  std::int32_t column;
  std::int32_t left_out;   ///< boxes of 64 columns of b at the tile's end that are neither loaded nor stored.
                           ///< Only of CTAs side by side, and of feeds that cut tasks
  std::int32_t low_boxes;  ///< boxes of kLowBoxRows rows of a that are loaded; 0: boxes of 64 rows are.
                           ///< Both CTAs of a cluster have the same number. Only of CTAs side by side, where
                           ///< the feed has low boxes
};
static_assert(sizeof(Sm90Task) == 48);

}  // namespace mkernel::kernels
