// The way of wgmma's sums into shared memory: narrowed, in pieces of 64 rows x 128 bytes under the 128-byte
// swizzle, as the copy engine takes them.
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx/shared.cuh"

namespace mkernel::kernels {

/// One warp's 16 rows of the pieces of its warpgroup.
class Sm90PieceRows {
 public:
  __device__ __forceinline__ Sm90PieceRows() {
    const std::uint32_t warp = threadIdx.x / 32 % 4;
    const std::uint32_t lane = threadIdx.x % 32;
    // Lane l addresses row l % 16 of two 8-column matrices; its half of the lanes says which.
    row_ = (warp * 16 + lane % 16) * 128;
    swizzle_ = lane % 8;
    half_ = lane / 16;
  }

  /// 64 columns of 16 bits, into the piece at `piece`. packed[2 * j], [2 * j + 1]: columns 8 * j .. of the
  /// upper and lower 8 rows.
  __device__ __forceinline__ void write(std::uint32_t piece, const std::uint32_t (&packed)[16]) const {
#pragma unroll
    for (std::uint32_t j = 0; j < 8; j += 2) {
      ptx::stmatrix_x4(piece + row_ + (((j + half_) ^ swizzle_) << 4), packed[2 * j], packed[2 * j + 1],
                       packed[2 * j + 2], packed[2 * j + 3]);
    }
  }

 private:
  std::uint32_t row_;
  std::uint32_t swizzle_;
  std::uint32_t half_;
};

}  // namespace mkernel::kernels
