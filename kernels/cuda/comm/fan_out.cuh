// Streams of rows, pushed from this GPU into the memory of other ranks of its node, chunk by chunk: own rows,
// and those that come from other nodes. Several CTAs share every chunk, so chunks become complete one after
// the other; each CTA moves its share with the bulk copy engine of its SM, driven by a thread that loads and
// some that store, chunk after chunk in turns: every byte is read once and stored once per target. (One
// thread for both could not issue fast enough where a piece is gathered from many rows.)
//
// Which chunks there are, in which order they go, and how a piece is loaded is for a plan to say. FanOutPlan
// below is that of rows whose parts are chunks; keys and values have one of their own. A plan has:
//   using Turn;     // .stream, .chunk
//   using Share;    // a FanOutShare, and what else load() needs
//   shares;         // CTAs that share every chunk
//   target[];       // FanOutTarget: the ranks that are written
//   std::int32_t turns() const;
//   Turn turn(std::int32_t index) const;
//   bool exists(const Turn&) const;       // false: nobody takes this turn
//   bool is_own(const Turn&) const;       // its rows are this rank's, which are there
//   const FanOutPlaces& places(const Turn&) const;
//   Share share(const Turn&, int share) const;
//   // One piece of `bytes` bytes into a stage; the barrier counts what is loaded.
//   void load(const FanOutCursor&, std::uint32_t bytes, std::uint32_t to, Pipeline<kFanOutStages>&) const;
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/divisor.h"
#include "kernels/cuda/comm/paced_links.cuh"
#include "kernels/cuda/ptx/bulk.cuh"
#include "kernels/cuda/ptx/fence.cuh"
#include "kernels/cuda/ptx/global.cuh"
#include "kernels/cuda/ptx/shared.cuh"
#include "kernels/cuda/ptx/tma.cuh"
#include "kernels/cuda/sync/pipeline.cuh"
#include "kernels/cuda/sync/trace.cuh"
#include "kernels/plan/push_gather_plan.h"
#include "kernels/plan/sm90_tile.h"

namespace mkernel::kernels {

inline constexpr int kFanOutStages = 12;
inline constexpr int kFanOutStorers = 3;  ///< threads that store, each in a warp of its own
inline constexpr int kFanOutReading = 3;  ///< stages that the stores of one may be reading; others hold loads
inline constexpr std::uint32_t kFanOutPieceBytes = 16384;

/// Memory of a rank that is written.
struct FanOutTarget {
  std::byte* rows;
  std::byte* words;
};

/// Where the chunks of a stream go.
struct FanOutPlaces {
  std::int32_t stores;     ///< the first of the targets: where rows are stored, in this order
  std::int32_t targets;    ///< the first of them: where chunks are counted
  std::uint64_t rows_at;   ///< their slab in a target's rows
  std::uint64_t ready_at;  ///< in its words: one of 64 bits per chunk, to which every share adds one
};

/// What a CTA pushes of a chunk: rows `begin` .. `end` - 1 of its block.
struct FanOutShare {
  std::int32_t begin, end;
  std::int32_t piece_rows;
  std::uint32_t row_bytes;  ///< of one row's part
  std::int64_t target;      ///< offset of the block's first row in the slab, whose rows follow each other
};

/// The rows of one source. Without rows it is one block of empty chunks.
struct FanOutStream : FanOutPlaces {
  const std::byte* source;  ///< [rows, row_bytes], or, as at the targets, the slab
  bool in_parts;            ///< as at the targets: part 0 of all rows of the slab, then part 1, ...
  std::int64_t rows;
  std::int32_t chunks;
  std::int64_t slab_rows;  ///< of the slab; as many as `rows` when it is this source's alone
  std::int64_t slab_row;   ///< of the slab, with which this source's begin
};

/// All streams, cut alike. A chunk is one part (along k) of a block of rows; the parts of a block follow each
/// other. Sizes and addresses are multiples of 16 bytes, a part of a row has at most kFanOutPieceBytes.
struct FanOutPlan {
  using Turn = StreamTurns::Turn;
  struct Share : FanOutShare {
    const std::byte* source;    ///< of the block's first row
    std::int64_t source_pitch;  ///< from row to row
  };

  RowParts row;
  std::int32_t block_rows;
  Divisor shares;                      ///< CTAs that share every chunk
  std::int32_t streams;                ///< the first one is this rank's, the others are those of rail peers
  std::int32_t most_chunks;            ///< of a stream after the first one
  FanOutTarget target[kMaxNodeRanks];  ///< the ranks that are written
  FanOutStream stream[kMaxKernelNodes];

  __device__ __forceinline__ StreamTurns order() const {
    return {stream[0].chunks, streams - 1, most_chunks};
  }
  __device__ __forceinline__ std::int32_t turns() const { return order().turns(); }
  __device__ __forceinline__ Turn turn(std::int32_t index) const { return order().turn(index); }
  /// Rows of this rank, which are there.
  __device__ __forceinline__ bool is_own(const Turn& turn) const { return turn.stream == 0; }
  /// Whether its stream has that many chunks.
  __device__ __forceinline__ bool exists(const Turn& turn) const {
    return turn.chunk < stream[turn.stream].chunks;
  }
  __device__ __forceinline__ const FanOutPlaces& places(const Turn& turn) const {
    return stream[turn.stream];
  }
  __device__ __forceinline__ std::int32_t stores(const Turn& turn) const { return places(turn).stores; }
  __device__ __forceinline__ std::int32_t targets(const Turn& turn) const { return places(turn).targets; }
  __device__ __forceinline__ const FanOutTarget& target_of(const Turn&, int t) const { return target[t]; }
  __device__ __forceinline__ Share share(const Turn& turn, int share) const {
    const FanOutStream& of = stream[turn.stream];
    const std::int32_t part = turn.chunk % row.parts;
    const std::int64_t first_row = turn.chunk / row.parts * std::int64_t{block_rows};
    const std::int64_t behind = of.rows - first_row;
    const auto rows = behind < 0 ? 0 : static_cast<std::int32_t>(min(behind, std::int64_t{block_rows}));
    Share at;
    at.begin = rows * share / shares;
    at.end = rows * (share + 1) / shares;
    const std::int64_t column = row.begin(part);
    at.row_bytes = static_cast<std::uint32_t>(row.bytes(part));
    at.piece_rows = static_cast<std::int32_t>(kFanOutPieceBytes / at.row_bytes);
    at.target = of.slab_rows * column + (of.slab_row + first_row) * at.row_bytes;
    at.source_pitch = of.in_parts ? at.row_bytes : row.row_bytes;
    at.source = of.source + (of.in_parts ? at.target : first_row * at.source_pitch + column);
    return at;
  }
  template <class Piece>
  __device__ __forceinline__ void load(const Piece& piece, std::uint32_t bytes, std::uint32_t to,
                                       const Pipeline<kFanOutStages>& stages) const {
    stages.arrive_full_expect(bytes);
    const Share& at = piece.share();
    const std::byte* from = at.source + piece.row() * at.source_pitch;
    const std::uint32_t full = stages.full_barrier();
    if (at.source_pitch == at.row_bytes) return ptx::bulk_load(to, from, bytes, full);
    // Rows lie together, parts of rows do not.
    for (std::uint32_t done = 0; done < bytes; done += at.row_bytes, from += at.source_pitch)
      ptx::bulk_load(to + done, from, at.row_bytes, full);
  }
};

/// The ranks of a node, whose memory is `rows` and `words` by local rank. Everybody begins with the next one
/// and ends with itself: nobody is written by all at a time.
__device__ __forceinline__ void describe_targets(std::int32_t local_rank, std::int32_t ranks,
                                                 std::byte* const* rows, std::byte* const* words,
                                                 FanOutTarget* targets) {
  for (std::int32_t t = 0; t < ranks; ++t) {
    const std::int32_t target = (local_rank + 1 + t) % ranks;
    targets[t] = {rows[target], words[target]};
  }
}
/// Completes a stream that has its rows, its chunks and its place at the targets: own rows, for the other
/// ranks of a node of `ranks`, and for this one's memory, too, when they are `kept` to be read there. A rank
/// alone that keeps none has no chunks.
__device__ __forceinline__ void describe_own_rows(const std::byte* rows, std::int32_t ranks, bool kept,
                                                  FanOutStream& stream) {
  stream.source = rows;
  stream.in_parts = false;
  stream.stores = kept ? ranks : ranks - 1;
  stream.targets = stream.stores;
  if (stream.targets == 0) stream.chunks = 0;
}
/// Likewise of rows that are put here from another node, into `memory`: for the other ranks of this node.
/// They are counted here too.
__device__ __forceinline__ void describe_far_rows(const std::byte* memory, std::int32_t ranks,
                                                  FanOutStream& stream) {
  stream.source = memory + stream.rows_at;
  stream.in_parts = true;
  stream.stores = ranks - 1;
  stream.targets = ranks;
}

inline constexpr std::int32_t kFanOutNothingLost = 0x7fffffff;

template <class Plan>
struct alignas(128) FanOutShared {
  std::byte stage[kFanOutStages][kFanOutPieceBytes];
  Plan plan;  ///< for the caller to fill in: too long for registers
  PipelineBarriers<kFanOutStages> barriers;
  PipelineBarriers<1> turn[kFanOutStorers];  ///< full when it is that storing thread's turn
  std::int32_t lost;  ///< the turn whose chunk did not come, nor anything after it; kFanOutNothingLost
};

/// Walks the pieces of one share of all chunks: a few rows' parts. A share without rows is one empty piece:
/// it has to be counted too.
template <class Plan>
class FanOutCursor {
 public:
  using Turn = typename Plan::Turn;
  using Share = typename Plan::Share;

  __device__ __forceinline__ FanOutCursor(const Plan& plan, int share)
      : plan_(plan), number_(share), turns_(plan.turns()) {
    enter_turn();
  }

  __device__ __forceinline__ bool done() const { return turn_ == turns_; }
  __device__ __forceinline__ std::int32_t turn() const { return turn_; }
  __device__ __forceinline__ const Turn& at() const { return at_; }
  __device__ __forceinline__ const FanOutPlaces& places() const { return *places_; }
  /// A chunk of another node's, which may be long in coming.
  __device__ __forceinline__ bool begins_to_wait() const {
    return !plan_.is_own(at_) && row_ == share_.begin;
  }
  /// What the CTA pushes of the chunk, and of its block the first row of the piece and how many it has.
  __device__ __forceinline__ const Share& share() const { return share_; }
  __device__ __forceinline__ std::int32_t row() const { return row_; }
  __device__ __forceinline__ std::int32_t rows() const { return min(share_.end - row_, share_.piece_rows); }
  __device__ __forceinline__ std::uint32_t bytes() const { return rows() * share_.row_bytes; }
  __device__ __forceinline__ std::int64_t target_offset() const {
    return share_.target + row_ * std::int64_t{share_.row_bytes};
  }
  /// Where its bytes go.
  __device__ __forceinline__ std::int32_t stores() const { return stores_; }
  __device__ __forceinline__ bool ends_share() const { return share_.end - row_ <= share_.piece_rows; }
  __device__ __forceinline__ void advance() {
    if (!ends_share()) {
      row_ += share_.piece_rows;
      return;
    }
    skip_turn();
  }
  /// To the next chunk; how many pieces were left of this one.
  __device__ __forceinline__ std::int32_t skip_turn() {
    const std::int32_t pieces = max(1, (share_.end - row_ + share_.piece_rows - 1) / share_.piece_rows);
    ++turn_;
    enter_turn();
    return pieces;
  }

 private:
  /// What does not change within a chunk: the divisions and the looks at the plan are here, for whoever walks
  /// is a single thread that has a microsecond for a piece.
  __device__ __forceinline__ void enter_turn() {
    for (;; ++turn_) {
      if (done()) return;
      at_ = plan_.turn(turn_);
      if (plan_.exists(at_)) break;
    }
    places_ = &plan_.places(at_);
    share_ = plan_.share(at_, number_);
    row_ = share_.begin;
    stores_ = plan_.stores(at_);
  }

  const Plan& plan_;
  const int number_;  ///< of the share
  const std::int32_t turns_;
  std::int32_t turn_ = 0;
  Turn at_{0, 0};
  const FanOutPlaces* places_ = nullptr;
  Share share_{};
  std::int32_t row_ = 0, stores_ = 0;
};

/// All threads of the CTA, before the roles below; ends with a barrier. Of the second warp one sets up the
/// barriers: the first may still be describing the streams.
template <class Plan>
__device__ __forceinline__ void init_fan_out(FanOutShared<Plan>& shared) {
  if (threadIdx.x == 32) {
    Pipeline<kFanOutStages>::init(shared.barriers, 1, 1);
    for (auto& turn : shared.turn) Pipeline<1>::init(turn, 1, 1);
    shared.lost = kFanOutNothingLost;
    ptx::fence_mbarrier_init_release_cluster();
  }
  __syncthreads();
}

/// All threads of the CTA, when the roles are over: `shared` may become something else afterwards.
template <class Plan>
__device__ __forceinline__ void end_fan_out(FanOutShared<Plan>& shared) {
  ptx::fence_proxy_async_shared_cta();
  __syncthreads();
  if (threadIdx.x == 0) {
    Pipeline<kFanOutStages>::end(shared.barriers);
    for (auto& turn : shared.turn) Pipeline<1>::end(turn);
  }
  __syncthreads();  // nobody sets up other barriers in this memory before these are gone
}

/// One thread: share `share` of the streams into the stages. `here(turn)` waits until that chunk may be read
/// by bulk copies; when it returns false, what was loaded before is the last that is stored.
template <class Plan, typename Here>
__device__ __forceinline__ void load_fan_out(const Plan& plan, int share, FanOutShared<Plan>& shared,
                                             const Here& here) {
  const std::uint32_t stage0 = ptx::shared_address(shared.stage);
  Pipeline<kFanOutStages> stages(shared.barriers);
  bool came = true;
  for (FanOutCursor<Plan> piece(plan, share); !piece.done(); piece.advance(), stages.advance()) {
    if (came && piece.begins_to_wait() && !here(piece.at())) {
      came = false;
      shared.lost = piece.turn();
    }
    stages.wait_empty();
    const std::uint32_t bytes = came && piece.stores() > 0 ? piece.bytes() : 0;
    if (bytes == 0) {
      stages.arrive_full();
      continue;
    }
    plan.load(piece, bytes, stage0 + stages.stage() * kFanOutPieceBytes, stages);
  }
}

/// One of kFanOutStorers threads, `storer`: every so manieth chunk from the stages to all targets, where it
/// is counted. They take turns because a chunk ends with waiting, for its last bytes and for the fence in
/// front of the counts, as long as a piece or two are on the links: the others push meanwhile. A turn begins
/// when all pieces before it are on their way: barriers tell a lap from the next one, not from the one after
/// that. `links`: those that the chunks go over, the copies that stay here included.
template <class Plan>
__device__ __forceinline__ void store_fan_out(const Plan& plan, int share, int storer,
                                              const DeviceTrace& trace, const PacedLinks& links,
                                              FanOutShared<Plan>& shared) {
  const std::uint32_t stage0 = ptx::shared_address(shared.stage);
  Pipeline<kFanOutStages> stages(shared.barriers);
  Pipeline<1> turn(shared.turn[storer]), next_turn(shared.turn[(storer + 1) % kFanOutStorers]);
  FanOutCursor<Plan> piece(plan, share);
  for (int number = 0; !piece.done(); ++number) {
    if (number % kFanOutStorers != storer) {
      for (std::int32_t pieces = piece.skip_turn(); pieces > 0; --pieces) stages.advance();
      continue;
    }
    if (number > 0) {
      turn.wait_full();
      turn.advance();
    }
    const typename Plan::Turn at = piece.at();
    const FanOutPlaces& places = piece.places();
    Pipeline<kFanOutStages> read = stages;  // trails by the stores that may still read
    bool came = true, ends = false;
    int reading = 0;
    std::uint64_t sent = 0;
    for (; !ends; piece.advance(), stages.advance()) {
      stages.wait_full();
      if (reading == 0) begin_work(trace);
      came = piece.turn() < shared.lost;
      ends = piece.ends_share();
      const std::uint32_t bytes = came ? piece.bytes() : 0;
      const std::uint32_t from = stage0 + stages.stage() * kFanOutPieceBytes;
      for (int t = 0; bytes > 0 && t < piece.stores(); ++t)
        ptx::bulk_store(plan.target_of(at, t).rows + places.rows_at + piece.target_offset(), from, bytes);
      ptx::bulk_commit_group();
      if (are_paced(links)) sent += std::uint64_t{bytes} * piece.stores();
      if (reading < kFanOutReading) {
        ++reading;
        continue;
      }
      ptx::bulk_wait_group_read<kFanOutReading>();
      read.arrive_empty();
      read.advance();
    }
    next_turn.arrive_full();
    ptx::bulk_wait_group_read<0>();
    for (; reading > 0; --reading, read.advance()) read.arrive_empty();
    ptx::bulk_wait_group<0>();
    if (!came) continue;
    await_links(links, sent);
    end_work(trace, DeviceWork::kPush, at.chunk);
    begin_work(trace);
    const ptx::SysReleased released = ptx::fence_acq_rel_sys();
    for (int t = 0; t < plan.targets(at); ++t) {
      auto* ready = reinterpret_cast<std::uint64_t*>(plan.target_of(at, t).words + places.ready_at);
      ptx::red_add_relaxed_sys(ready + at.chunk, 1, released);
    }
    end_work(trace, DeviceWork::kSignal, at.chunk);
  }
}

}  // namespace mkernel::kernels
