// Rows of this rank, pushed into the memory of the other ranks of its node, chunk by chunk.
// Several CTAs share every chunk, so chunks become complete one after the other; each CTA moves its share
// with the bulk copy engine of its SM, driven by a thread that loads and one that stores: every byte is read
// once and stored once per target. (One thread for both could not issue fast enough where a piece is gathered
// from many rows.)
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/comm/row_parts.h"
#include "kernels/ptx/bulk.cuh"
#include "kernels/ptx/fence.cuh"
#include "kernels/ptx/global.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/sync/device_trace.cuh"
#include "kernels/sync/pipeline.cuh"

namespace mkernel::kernels {

inline constexpr int kFanOutStages = 12;
inline constexpr int kFanOutStoring = 6;  ///< stages whose stores may be under way; the others hold loads
inline constexpr std::uint32_t kFanOutPieceBytes = 16384;

/// Ranks of one node at most.
inline constexpr int kMaxFanOutTargets = 15;

struct FanOutTarget {
  std::byte* rows;       ///< where the rows go: part 0 of all of them, then part 1, ...
  std::uint64_t* ready;  ///< [chunks]: one is added per share when that share of the chunk is there
};

/// A chunk is one part (along k) of a block of rows; the parts of a block follow each other. Sizes and
/// addresses are multiples of 16 bytes, a part of a row has at most kFanOutPieceBytes. Without rows the
/// stream is one block of empty chunks.
struct FanOutStream {
  const std::byte* source;  ///< [rows, row.row_bytes]
  std::int64_t rows;
  RowParts row;
  std::int32_t block_rows;
  std::int32_t chunks;
  std::int32_t shares;   ///< CTAs that share every chunk
  std::int32_t targets;  ///< in the order in which they are written
  FanOutTarget target[kMaxFanOutTargets];
};

struct alignas(128) FanOutShared {
  std::byte stage[kFanOutStages][kFanOutPieceBytes];
  FanOutStream stream;  ///< for the caller to fill in: too long for registers
  PipelineBarriers<kFanOutStages> barriers;
  std::uint32_t sent;  ///< chunks of which this CTA's share has arrived everywhere
};

/// Walks the pieces of one share of all chunks: a few rows' parts. A share without rows is one empty piece:
/// it has to be counted too.
class FanOutCursor {
 public:
  __device__ __forceinline__ FanOutCursor(const FanOutStream& stream, int share)
      : stream_(stream), share_(share) {
    enter_part();
  }

  __device__ __forceinline__ bool done() const { return chunk_ == stream_.chunks; }
  __device__ __forceinline__ std::int32_t chunk() const { return chunk_; }
  __device__ __forceinline__ std::int32_t rows() const { return min(end_ - row_, piece_rows_); }
  /// Of one row's part.
  __device__ __forceinline__ std::uint32_t row_bytes() const { return row_bytes_; }
  __device__ __forceinline__ std::uint32_t bytes() const { return rows() * row_bytes_; }
  __device__ __forceinline__ std::int64_t source_offset() const {
    return (first_row_ + row_) * stream_.row.row_bytes + column_;
  }
  __device__ __forceinline__ std::int64_t target_offset() const {
    return stream_.rows * column_ + (first_row_ + row_) * row_bytes_;
  }
  __device__ __forceinline__ bool ends_share() const { return end_ - row_ <= piece_rows_; }
  __device__ __forceinline__ void advance() {
    if (!ends_share()) {
      row_ += piece_rows_;
      return;
    }
    ++chunk_;
    if (++part_ == stream_.row.parts) {
      part_ = 0;
      first_row_ += stream_.block_rows;
    }
    enter_part();
  }

 private:
  /// What does not change within a part of a block: the divisions are here.
  __device__ __forceinline__ void enter_part() {
    const std::int64_t behind = stream_.rows - first_row_;
    const auto rows =
        behind < 0 ? 0 : static_cast<std::int32_t>(min(behind, std::int64_t{stream_.block_rows}));
    row_ = rows * share_ / stream_.shares;
    end_ = rows * (share_ + 1) / stream_.shares;
    column_ = stream_.row.begin(part_);
    row_bytes_ = static_cast<std::uint32_t>(stream_.row.bytes(part_));
    piece_rows_ = static_cast<std::int32_t>(kFanOutPieceBytes / row_bytes_);
  }

  const FanOutStream& stream_;
  const int share_;
  std::int32_t chunk_ = 0, part_ = 0;
  std::int64_t first_row_ = 0;      ///< of the block
  std::int32_t row_ = 0, end_ = 0;  ///< of this CTA's share, in the block
  std::int64_t column_ = 0;         ///< bytes
  std::uint32_t row_bytes_ = 0;
  std::int32_t piece_rows_ = 0;
};

/// All threads of the CTA, before the three roles below; ends with a barrier.
__device__ __forceinline__ void init_fan_out(FanOutShared& shared) {
  if (threadIdx.x == 0) {
    Pipeline<kFanOutStages>::init(shared.barriers, 1, 1);
    shared.sent = 0;
    ptx::fence_mbarrier_init_release_cluster();
  }
  __syncthreads();
}

/// One thread: share `share` of the stream into the stages.
__device__ __forceinline__ void load_fan_out(const FanOutStream& stream, int share, FanOutShared& shared) {
  const std::uint32_t stage0 = ptx::shared_address(shared.stage);
  const bool whole_rows = stream.row.parts == 1;  // they lie together, parts of rows do not
  Pipeline<kFanOutStages> stages(shared.barriers);
  for (FanOutCursor piece(stream, share); !piece.done(); piece.advance(), stages.advance()) {
    stages.wait_empty();
    const std::uint32_t bytes = piece.bytes();
    if (bytes == 0) {
      stages.arrive_full();
      continue;
    }
    stages.arrive_full_expect(bytes);
    const std::uint32_t to = stage0 + stages.stage() * kFanOutPieceBytes;
    const std::byte* from = stream.source + piece.source_offset();
    if (whole_rows) {
      ptx::bulk_load(to, from, bytes, stages.full_barrier());
      continue;
    }
    for (std::uint32_t at = 0; at < bytes; at += piece.row_bytes(), from += stream.row.row_bytes)
      ptx::bulk_load(to + at, from, piece.row_bytes(), stages.full_barrier());
  }
}

/// One thread of another warp: from the stages to all targets. Returns when all of it is there;
/// signal_fan_out() says so.
__device__ __forceinline__ void store_fan_out(const FanOutStream& stream, int share, const DeviceTrace& trace,
                                              FanOutShared& shared) {
  const std::uint32_t stage0 = ptx::shared_address(shared.stage);
  Pipeline<kFanOutStages> stages(shared.barriers);
  Pipeline<kFanOutStages> stored = stages;  // trails by the stores under way
  FanOutCursor arrived(stream, share);
  // Waiting for whole stores, not only for their reads, frees the stage and tells in the same breath which
  // pieces have arrived.
  const auto count_one = [&] {
    stored.arrive_empty();
    stored.advance();
    if (arrived.ends_share()) {
      ptx::atom_add_acq_rel_cta_shared(ptx::shared_address(&shared.sent), 1);
      end_work(trace, DeviceWork::kPush, arrived.chunk());
      begin_work(trace);
    }
    arrived.advance();
  };
  int under_way = 0;
  begin_work(trace);
  for (FanOutCursor piece(stream, share); !piece.done(); piece.advance(), stages.advance()) {
    stages.wait_full();
    const std::uint32_t bytes = piece.bytes();
    const std::uint32_t from = stage0 + stages.stage() * kFanOutPieceBytes;
    const std::int64_t to = piece.target_offset();
    for (int t = 0; bytes > 0 && t < stream.targets; ++t)
      ptx::bulk_store(stream.target[t].rows + to, from, bytes);
    ptx::bulk_commit_group();
    if (under_way < kFanOutStoring) {
      ++under_way;
      continue;
    }
    ptx::bulk_wait_group<kFanOutStoring>();
    count_one();
  }
  ptx::bulk_wait_group<0>();
  while (!arrived.done()) count_one();
}

/// One warp, beside the two: counts this CTA's share of every chunk at every target when it has arrived. A
/// warp of its own, because the fence in front of a count takes as long as a piece on the link: the pushing
/// thread would stand still. Its wait is for a thread of this CTA that waits for nobody, so it has no
/// deadline.
__device__ __forceinline__ void signal_fan_out(const FanOutStream& stream, const DeviceTrace& trace,
                                               const FanOutShared& shared) {
  const auto chunks = static_cast<std::uint32_t>(stream.chunks);
  const int target = static_cast<int>(threadIdx.x % 32);
  for (std::uint32_t told = 0; told < chunks;) {
    // Read by an atomic, as it is written: what hands data on between warps is then plain to see, for
    // compute-sanitizer's racecheck too.
    std::uint32_t sent = 0;
    if (target == 0) sent = ptx::atom_add_acq_rel_cta_shared(ptx::shared_address(&shared.sent), 0);
    sent = __shfl_sync(~0U, sent, 0);
    if (sent == told) continue;
    if (target == 0) begin_work(trace);
    // The first lane heard it from the thread that saw the stores complete; barrier and fence carry it on.
    __syncwarp();
    ptx::fence_acq_rel_sys();
    for (; told < sent; ++told) {
      if (target < stream.targets) ptx::red_add_relaxed_sys(stream.target[target].ready + told, 1);
    }
    if (target == 0) end_work(trace, DeviceWork::kSignal, told - 1);
  }
}

}  // namespace mkernel::kernels
