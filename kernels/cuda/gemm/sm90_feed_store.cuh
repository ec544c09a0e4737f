// The storing warps of the GEMM body with a feed. What a feed is: sm90_feed.cuh.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/gemm/sm90_config.cuh"
#include "kernels/cuda/gemm/sm90_feed_tasks.cuh"
#include "kernels/cuda/gemm/sm90_load.cuh"
#include "kernels/cuda/ptx/shared.cuh"
#include "kernels/cuda/ptx/tma.cuh"
#include "kernels/cuda/ptx/vector.cuh"

namespace mkernel::kernels {

/// One storing warp: pieces of its warpgroup's rows from shared memory to where they belong.
template <class Config>
class Sm90FeedStore {
 public:
  __device__ __forceinline__ Sm90FeedStore(int group, Sm90FeedShared<Config>& shared)
      : group_(group),
        shared_(shared),
        pieces_(shared.body.pieces[group]),
        out_(ptx::shared_address(shared.body.out[group])) {}

  template <class Feed>
  __device__ __forceinline__ void run(const Feed& feed) {
    Sm90Tasks<Config> tasks(shared_);
    const std::uint32_t lane = threadIdx.x % 32;
    for (int i = 0;; ++i, tasks.advance()) {
      const Sm90Task& task = tasks.wait();
      if (task.product == Sm90Task::kEnd) break;
      const int rows = task.rows - group_ * 64;
      if (rows > 0) {
        if (is_traced(sm90_trace(feed))) {
          pieces_.wait_full();
          if (lane == 0) begin_work(sm90_trace(feed));
        }
        if (feed.gated(task.product)) {
          store_boxes(feed, task);
        } else {
          store_rows(feed, task, rows);
        }
        if (lane == 0) end_work(sm90_trace(feed), DeviceWork::kStore, i);
      }
      if (tile_complete(i)) feed.after_store(task);
      __syncwarp();
      if (lane == 0) tasks.give_back();
    }
  }

 private:
  /// Of the two storing warps the second one speaks for the whole tile.
  __device__ __forceinline__ bool tile_complete(int i) const {
    __syncwarp();
    std::uint32_t before = 0;
    if (threadIdx.x % 32 == 0) {
      const std::uint32_t stored = ptx::shared_address(&shared_.body.stored[i % shared_.body.kStored]);
      before = ptx::atom_add_acq_rel_cta_shared(stored, 1);
    }
    before = __shfl_sync(~0U, before, 0);
    __syncwarp();
    return before % Config::kMultiplyWarpgroups == Config::kMultiplyWarpgroups - 1;
  }

  __device__ __forceinline__ void give_back() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) pieces_.arrive_empty();
    pieces_.advance();
  }

  /// Of a gated product, by the copy engine.
  template <class Feed>
  __device__ __forceinline__ void store_boxes(const Feed& feed, const Sm90Task& task) {
    for (int piece = 0; piece < Config::kPieces / 2; ++piece) {
      pieces_.wait_full();
      if (threadIdx.x % 32 == 0) {
        ptx::tma_store_3d(feed.c(task.product), task.c_column + piece * Config::kPieceColumns,
                          task.a_row + group_ * 64, 0, out_ + pieces_.stage() * Config::kPieceBytes);
        ptx::bulk_commit_group();
        ptx::bulk_wait_group_read<0>();
      }
      give_back();
    }
    if (threadIdx.x % 32 == 0) ptx::bulk_wait_group<0>();
  }

  /// Row by row: eight lanes have the 128 bytes of a piece's row, a lane 16 of them.
  template <class Feed>
  __device__ __forceinline__ void store_rows(const Feed& feed, const Sm90Task& task, int rows) {
    const auto lane = static_cast<int>(threadIdx.x % 32);
    std::uint64_t row_of[2];  // addresses
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane + half * 32;
      row_of[half] = row < rows ? reinterpret_cast<std::uint64_t>(feed.row_of(task, group_ * 64 + row)) : 0;
    }
    static_assert(Config::kPieceColumns == 64);  // those of a box
    for (int piece = 0; piece < Config::kPieces; ++piece) {
      const int column = task.c_column + piece * Config::kPieceColumns + lane % 8 * 8;
      const bool inside = column < feed.columns() && piece < Config::kPieces - sm90_left_out<Feed>(task);
      pieces_.wait_full();
      const std::uint32_t from = out_ + pieces_.stage() * Config::kPieceBytes;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll 4
        for (int step = 0; step < 8; ++step) {
          const int in_half = step * 4 + lane / 8, row = half * 32 + in_half;
          auto* to = reinterpret_cast<std::byte*>(__shfl_sync(~0U, row_of[half], in_half));
          if (row >= rows || !inside) continue;
          const std::uint32_t at = from + row * 128 + ((lane % 8 ^ row % 8) << 4);
          ptx::st_v4(to + std::int64_t{column} * 2, ptx::ld_shared_v4(at));
        }
      }
      give_back();
    }
  }

  const int group_;
  Sm90FeedShared<Config>& shared_;
  Pipeline<Config::kSlots> pieces_;
  const std::uint32_t out_;
};

}  // namespace mkernel::kernels
