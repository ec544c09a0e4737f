// The way of the sums out of the multiplying warps' registers: narrowed, in pieces of 64 rows x 128 bytes,
// through a few slots of shared memory that the store threads empty.
#pragma once

#include <cstdint>

#include "kernels/cuda/gemm/sm90_config.cuh"
#include "kernels/cuda/gemm/sm90_element.cuh"
#include "kernels/cuda/ptx/fence.cuh"
#include "kernels/cuda/ptx/shared.cuh"

namespace mkernel::kernels {

/// One warp's end (16 rows of each piece) of its warpgroup's pieces. Pieces that find no slot can stay behind
/// in registers, narrowed, so that the next tile need not wait for the copy engine.
template <class Config, class Tile = Config>
class Sm90Output {
 public:
  /// `pieces`: this thread's place among the pieces of `group`; goes on where it stands.
  __device__ __forceinline__ Sm90Output(Sm90Shared<Config>& shared, int group,
                                        Pipeline<Config::kSlots>& pieces)
      : slots_(ptx::shared_address(shared.out[group])), pieces_(pieces) {
    const std::uint32_t warp = threadIdx.x / 32 % 4;
    const std::uint32_t lane = threadIdx.x % 32;
    slots_ += warp * 16 * 128;
    // Lane l addresses row l % 16 of two 8-column matrices; its half of the lanes says which.
    row_ = lane % 16 * 128;
    swizzle_ = lane % 8;
    half_ = lane / 16;
  }

  /// Hands on a finished tile; the last kHeld pieces stay in registers.
  __device__ __forceinline__ void write(const float (&sums)[Tile::kBlocks][Tile::kSums]) {
    constexpr int kAcross = Tile::kPieces / Tile::kBlocks;
#pragma unroll
    for (int piece = 0; piece < Tile::kPieces; ++piece) {
      const float* from = sums[piece / kAcross] + piece % kAcross * Config::kPieceSums;
      std::uint32_t packed[Config::kPieceSums / 2];
#pragma unroll
      for (int j = 0; j < Config::kPieceSums / 2; ++j) packed[j] = narrow(from[2 * j], from[2 * j + 1]);
      if (piece < Tile::kPieces - Tile::kHeld) {
        write_piece(packed);
        continue;
      }
#pragma unroll
      for (int j = 0; j < Config::kPieceSums / 2; ++j) {
        held_[piece - (Tile::kPieces - Tile::kHeld)][j] = packed[j];
      }
    }
  }

  /// Hands on a finished tile whose columns are gates in their first half, and what these let through in the
  /// other: half as many columns, of which none stays behind.
  __device__ __forceinline__ void write_gated(const float (&sums)[Tile::kBlocks][Tile::kSums]) {
    constexpr int kPieces = Tile::kPieces / 2;
    static_assert(Tile::kBlocks == 1);
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const float* gate = sums[0] + piece * Config::kPieceSums;
      const float* up = gate + kPieces * Config::kPieceSums;
      std::uint32_t packed[Config::kPieceSums / 2];
#pragma unroll
      for (int j = 0; j < Config::kPieceSums / 2; ++j) {
        packed[j] = narrow(ptx::swiglu_approx(gate[2 * j], up[2 * j]),
                           ptx::swiglu_approx(gate[2 * j + 1], up[2 * j + 1]));
      }
      write_piece(packed);
    }
  }

  /// Writes what write() left behind.
  __device__ __forceinline__ void write_held() {
    if constexpr (Tile::kHeld > 0) {
#pragma unroll
      for (int piece = 0; piece < Tile::kHeld; ++piece) write_piece(held_[piece]);
    }
  }

 private:
  static __device__ __forceinline__ std::uint32_t narrow(float low, float high) {
    return sm90_narrow<Config::kInput>(low, high);
  }

  /// 16 rows x 64 columns of 16 bits. packed[2 * j], [2 * j + 1]: columns 8 * j .. of the upper and lower 8
  /// rows.
  __device__ __forceinline__ void write_piece(const std::uint32_t (&packed)[Config::kPieceSums / 2]) {
    pieces_.wait_empty();
    const std::uint32_t row = slots_ + pieces_.stage() * Config::kPieceBytes + row_;
#pragma unroll
    for (std::uint32_t j = 0; j < 8; j += 2) {
      ptx::stmatrix_x4(row + (((j + half_) ^ swizzle_) << 4), packed[2 * j], packed[2 * j + 1],
                       packed[2 * j + 2], packed[2 * j + 3]);
    }
    hand_on();
  }

  /// Every lane orders its stores before the copy engine's reads; the warp meets; one lane speaks for it.
  __device__ __forceinline__ void hand_on() {
    ptx::fence_proxy_async_shared_cta();
    __syncwarp();
    if (threadIdx.x % 32 == 0) pieces_.arrive_full();
    pieces_.advance();
  }

  std::uint32_t slots_;
  std::uint32_t row_;
  std::uint32_t swizzle_;
  std::uint32_t half_;
  Pipeline<Config::kSlots>& pieces_;
  std::uint32_t held_[Tile::kHeld > 0 ? Tile::kHeld : 1][Config::kPieceSums / 2];
};

}  // namespace mkernel::kernels
