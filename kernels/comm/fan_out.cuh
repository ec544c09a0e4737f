// A stream of bytes of this rank, pushed into the memory of the other ranks of its node, chunk by chunk.
// Several CTAs share every chunk, so chunks become complete one after the other; each CTA drives its part
// with one thread and the bulk copy engine of its SM: every byte is read once and stored once per target.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ptx/bulk.cuh"
#include "kernels/ptx/fence.cuh"
#include "kernels/ptx/global.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/sync/pipeline.cuh"

namespace mkernel::kernels {

inline constexpr int kFanOutStages = 12;
inline constexpr int kFanOutLead =
    4;  ///< loads under way before the stores; the other stages hold stores under way
inline constexpr std::uint32_t kFanOutPieceBytes = 16384;

/// Ranks of one node at most.
inline constexpr int kMaxFanOutTargets = 15;

struct FanOutTarget {
  std::byte* stream;     ///< where byte 0 goes
  std::uint64_t* ready;  ///< [chunks]: one is added per part when its part of the chunk is there
};

/// Sizes and addresses are multiples of 16 bytes. Without bytes the stream is one empty chunk.
struct FanOutStream {
  const std::byte* source;
  std::uint64_t bytes;
  std::uint64_t chunk_bytes;
  std::int32_t parts;    ///< CTAs that share every chunk
  std::int32_t targets;  ///< in the order in which they are written
  FanOutTarget target[kMaxFanOutTargets];
};

struct alignas(128) FanOutShared {
  std::byte stage[kFanOutStages][kFanOutPieceBytes];
  FanOutStream stream;  ///< for the caller to fill in: too long for registers
  PipelineBarriers<kFanOutStages> barriers;
  std::uint32_t sent;  ///< chunks of which this CTA's part has arrived everywhere
};

/// Walks the pieces of one part of all chunks. A part without bytes is one empty piece: it has to be counted
/// too.
class FanOutCursor {
 public:
  __device__ __forceinline__ FanOutCursor(const FanOutStream& stream, int part)
      : stream_(stream), part_(part) {
    enter();
  }

  __device__ __forceinline__ bool done() const {
    return chunk_ > 0 && chunk_ * stream_.chunk_bytes >= stream_.bytes;
  }
  __device__ __forceinline__ std::uint64_t chunk() const { return chunk_; }
  __device__ __forceinline__ std::uint64_t offset() const { return at_; }
  __device__ __forceinline__ std::uint32_t bytes() const {
    return end_ - at_ < kFanOutPieceBytes ? static_cast<std::uint32_t>(end_ - at_) : kFanOutPieceBytes;
  }
  __device__ __forceinline__ bool ends_part() const { return end_ - at_ <= kFanOutPieceBytes; }
  __device__ __forceinline__ void advance() {
    if (!ends_part()) {
      at_ += kFanOutPieceBytes;
      return;
    }
    ++chunk_;
    enter();
  }

 private:
  static constexpr std::uint64_t kLineBytes = 128;

  __device__ __forceinline__ void enter() {
    const std::uint64_t begin = chunk_ * stream_.chunk_bytes;
    const std::uint64_t left = begin < stream_.bytes ? stream_.bytes - begin : 0;
    const std::uint64_t bytes = left < stream_.chunk_bytes ? left : stream_.chunk_bytes;
    // Parts begin at whole lines: a line that two parts share crosses the link twice, half empty. The last
    // part has the rest.
    const std::uint64_t lines = bytes / kLineBytes;
    at_ = begin + lines * part_ / stream_.parts * kLineBytes;
    end_ =
        part_ + 1 == stream_.parts ? begin + bytes : begin + lines * (part_ + 1) / stream_.parts * kLineBytes;
  }

  const FanOutStream& stream_;
  const int part_;
  std::uint64_t chunk_ = 0;
  std::uint64_t at_ = 0, end_ = 0;
};

/// All threads of the CTA, before fan_out(); ends with a barrier.
__device__ __forceinline__ void init_fan_out(FanOutShared& shared) {
  if (threadIdx.x == 0) {
    Pipeline<kFanOutStages>::init(shared.barriers, 1, 1);
    shared.sent = 0;
    ptx::fence_mbarrier_init_release_cluster();
  }
  __syncthreads();
}

/// One thread: part `part` of the stream to all targets. Returns when all of it is there; signal_fan_out()
/// says so.
__device__ __forceinline__ void fan_out(const FanOutStream& stream, int part, FanOutShared& shared) {
  // A load takes the stage of the piece kFanOutStages before it. Waiting for whole stores, not only for their
  // reads, frees the stage and tells in the same breath which pieces have arrived.
  constexpr int kPending = kFanOutStages - kFanOutLead;
  Pipeline<kFanOutStages> loads(shared.barriers);
  Pipeline<kFanOutStages> stores = loads;
  FanOutCursor load(stream, part), store(stream, part), arrived(stream, part);
  std::uint64_t loaded = 0, stored = 0, counted = 0;  // pieces
  const std::uint32_t stage0 = ptx::shared_address(shared.stage);

  const auto count_one = [&] {
    if (arrived.ends_part()) {
      ptx::st_release_cta_shared(ptx::shared_address(&shared.sent),
                                 static_cast<std::uint32_t>(arrived.chunk() + 1));
    }
    arrived.advance();
  };
  for (; !store.done(); ++stored) {
    for (; !load.done() && loaded < stored + kFanOutLead; ++loaded, load.advance(), loads.advance()) {
      if (load.bytes() == 0) {
        loads.arrive_full();
        continue;
      }
      loads.arrive_full_expect(load.bytes());
      ptx::bulk_load(stage0 + loads.stage() * kFanOutPieceBytes, stream.source + load.offset(), load.bytes(),
                     loads.full_barrier());
    }
    stores.wait_full();
    for (int t = 0; store.bytes() > 0 && t < stream.targets; ++t) {
      ptx::bulk_store(stream.target[t].stream + store.offset(), stage0 + stores.stage() * kFanOutPieceBytes,
                      store.bytes());
    }
    ptx::bulk_commit_group();
    store.advance();
    stores.advance();
    ptx::bulk_wait_group<kPending>();
    for (; counted + kPending < stored + 1; ++counted) count_one();
  }
  ptx::bulk_wait_group<0>();
  while (!arrived.done()) count_one();
}

/// One warp, beside fan_out(): counts this CTA's part of every chunk at every target when it has arrived. A
/// warp of its own, because the fence in front of a count takes as long as a piece on the link: the pushing
/// thread would stand still. Its wait is for a thread of this CTA that waits for nobody, so it has no
/// deadline.
__device__ __forceinline__ void signal_fan_out(const FanOutStream& stream, const FanOutShared& shared) {
  const auto chunks = static_cast<std::uint32_t>(
      stream.bytes == 0 ? 1 : (stream.bytes + stream.chunk_bytes - 1) / stream.chunk_bytes);
  const int target = static_cast<int>(threadIdx.x % 32);
  for (std::uint32_t told = 0; told < chunks;) {
    const std::uint32_t sent = ptx::ld_acquire_cta_shared(ptx::shared_address(&shared.sent));
    if (sent == told) continue;
    // Each lane took `sent` with acquire from the thread that saw the stores complete; the fence carries that
    // on.
    ptx::fence_acq_rel_sys();
    for (; told < sent; ++told) {
      if (target < stream.targets) ptx::red_add_relaxed_sys(stream.target[target].ready + told, 1);
    }
  }
}

}  // namespace mkernel::kernels
