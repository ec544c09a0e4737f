// The tiles of the body for products of few rows (cuda/gemm/sm90_skinny.cuh), and what of a multiprocessor
// they take. Pure, the same on host and device.
#pragma once

#include <cstdint>

#include "kernels/plan/sm90_tile.h"

namespace mkernel::kernels {

/// Rows of a that it is built for: a tile has all rows of the product, padded to one of these.
inline constexpr std::int32_t kSkinnyRows[] = {16, 32, 64};
inline constexpr std::int32_t kSkinnyMostRows = 64;
/// Columns of a tile.
inline constexpr std::int32_t kSkinnyColumns = 128;

/// CTAs that share a multiprocessor. Two of them keep it busy while one of them starts or ends, and clusters
/// of any size find room for all of their CTAs at once.
inline constexpr std::int32_t kSkinnyCtasPerSm = 2;
/// Bytes of one step along k in shared memory: of a and b.
constexpr std::int32_t skinny_stage_bytes(std::int32_t rows) {
  return (rows + kSkinnyColumns) * kSm90TileK * 2;
}
/// Steps along k that a CTA has under way: as many as fit into its part of the 228 KiB of a multiprocessor,
/// of which every CTA loses one, and the barriers need some of another.
constexpr std::int32_t skinny_stages(std::int32_t rows) {
  return (228 / kSkinnyCtasPerSm - 2) * 1024 / skinny_stage_bytes(rows);
}
/// CTAs that may share the steps along k of a tile.
inline constexpr std::int32_t kSkinnyMostSplit = 8;

}  // namespace mkernel::kernels
