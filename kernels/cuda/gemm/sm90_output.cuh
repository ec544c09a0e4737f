// The way of the sums out of the multiplying warps' registers: narrowed, in pieces of 64 rows x 128 bytes,
// through a few slots of shared memory that the store threads empty.
#pragma once

#include <cstdint>

#include "kernels/cuda/gemm/sm90_config.cuh"
#include "kernels/cuda/gemm/sm90_element.cuh"
#include "kernels/cuda/gemm/sm90_piece.cuh"
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
      : slots_(ptx::shared_address(shared.out[group])), pieces_(pieces) {}

  /// Hands on a finished tile; the last kHeld pieces stay in registers.
  __device__ __forceinline__ void write(const float (&sums)[Tile::kBlocks][Tile::kSums]) {
    constexpr int kAcross = Tile::kPieces / Tile::kBlocks;
#pragma unroll
    for (int piece = 0; piece < Tile::kPieces; ++piece) {
      const float* from = sums[piece / kAcross] + piece % kAcross * Config::kPieceSums;
      std::uint32_t packed[Config::kPieceSums / 2];
#pragma unroll
      for (int j = 0; j < Config::kPieceSums / 2; ++j)
        packed[j] = narrow_pair<Config::kInput>(from[2 * j], from[2 * j + 1]);
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
        packed[j] = narrow_pair<Config::kInput>(ptx::swiglu_approx(gate[2 * j], up[2 * j]),
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
  /// 16 rows x 64 columns of 16 bits, as Sm90PieceRows has them.
  __device__ __forceinline__ void write_piece(const std::uint32_t (&packed)[Config::kPieceSums / 2]) {
    pieces_.wait_empty();
    rows_.write(slots_ + pieces_.stage() * Config::kPieceBytes, packed);
    hand_on();
  }

  /// Every lane orders its stores before the copy engine's reads; the warp meets; one lane speaks for it.
  __device__ __forceinline__ void hand_on() {
    ptx::fence_proxy_async_shared_cta();
    __syncwarp();
    if (threadIdx.x % 32 == 0) pieces_.arrive_full();
    pieces_.advance();
  }

  const std::uint32_t slots_;
  const Sm90PieceRows rows_;
  Pipeline<Config::kSlots>& pieces_;
  std::uint32_t held_[Tile::kHeld > 0 ? Tile::kHeld : 1][Config::kPieceSums / 2];
};

}  // namespace mkernel::kernels
