// Ring attention on the cuda executor: how keys and values of all ranks come to every rank, head by head. The
// roles of the CTAs that communicate, and the wait of those that compute. See README.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/lent_workspace.h"
#include "kernels/cuda/comm/endpoint.cuh"
#include "kernels/cuda/comm/fan_out.cuh"
#include "kernels/cuda/launch/first_cta.cuh"
#include "kernels/cuda/ptx/fence.cuh"
#include "kernels/cuda/sync/wait.cuh"
#include "kernels/ops/ring_attention/parameters.h"

namespace mkernel::kernels {

static_assert(KvChunks::kPieceBytes == kFanOutPieceBytes);

/// Until all shares of the chunk have been pushed here. False when it gave up. Over several nodes chunks come
/// through others, whose own waits end before this one.
__device__ __forceinline__ bool wait_kv_chunk(const KvGatherParameters& p, std::uint64_t epoch,
                                              std::int32_t source, std::int32_t tensor, std::int32_t chunk,
                                              DeviceRole role) {
  const std::byte* words = p.words[p.local_rank] + p.gather.ready_offset(source, tensor);
  return wait_at_least(reinterpret_cast<const std::uint64_t*>(words) + chunk, p.gather.count(epoch),
                       {role, DeviceTag::kChunkReady, source, static_cast<std::uint32_t>(chunk)},
                       at_stage(wait_scope(p.endpoint), p.rails > 0 ? 1 : 0));
}

/// No chunk has this number: the launch has failed, and nothing more is waited for.
inline constexpr std::int32_t kNoMoreKvWaits = 0x7fffffff;

/// The loading thread: until all rows of the head up to `row` are here, and may be loaded by TMA. They come
/// in the order of rows, so `seen`, of this source and tensor, says what was seen of a head: the chunk behind
/// the last one that it saw in this launch, and behind those before it of the same head.
__device__ __forceinline__ void wait_kv_rows(const KvGatherParameters& p, std::uint64_t epoch,
                                             std::int32_t source, std::int32_t tensor, std::int32_t head,
                                             std::int32_t row, std::int32_t& seen) {
  const std::int32_t first = p.gather.first_chunk(head), end = p.gather.first_chunk(head + 1);
  const std::int32_t last = p.gather.chunk_of(head, row);
  if (last < seen && (seen <= end || seen == kNoMoreKvWaits)) return;
  std::int32_t chunk = first < seen && seen <= end ? seen : first;
  for (; chunk <= last; ++chunk) {
    if (wait_kv_chunk(p, epoch, source, tensor, chunk, DeviceRole::kCompute)) continue;
    chunk = kNoMoreKvWaits;
    break;
  }
  seen = chunk;
  // What was acquired was written by others' copies; TMA reads it next.
  ptx::fence_proxy_async_global();
}

/// Keys or values of one source.
struct KvStream : FanOutPlaces {
  const TensorMap* own;    ///< of this rank's
  const std::byte* slab;   ///< of a rail peer's, which have been put here
  std::int32_t positions;  ///< that the source holds
};

/// The plan of the fan out (cuda/comm/fan_out.cuh). Own rows are loaded as boxes of a tensor: those of a head
/// are too short to be copied one by one.
struct KvFanOutPlan {
  using Turn = KvChunks::Turn;
  struct Share : FanOutShare {
    const TensorMap* own;
    const std::byte* slab;
    std::int32_t column, row, first;  ///< of the block's first row, in the own tensor
  };

  KvChunks chunks;
  Divisor shares;
  std::int32_t piece_rows;
  FanOutTarget target[kMaxNodeRanks];
  KvStream stream[KvChunks::kTensors * kMaxKernelNodes];

  __device__ __forceinline__ std::int32_t turns() const { return chunks.turns(); }
  __device__ __forceinline__ Turn turn(std::int32_t index) const { return chunks.turn(index); }
  __device__ __forceinline__ bool exists(const Turn&) const { return true; }
  __device__ __forceinline__ bool is_own(const Turn& turn) const { return turn.stream < KvChunks::kTensors; }
  __device__ __forceinline__ const FanOutPlaces& places(const Turn& turn) const {
    return stream[turn.stream];
  }
  __device__ __forceinline__ std::int32_t stores(const Turn& turn) const {
    return turn.target == KvChunks::kAllTargets ? places(turn).stores : 1;
  }
  __device__ __forceinline__ std::int32_t targets(const Turn& turn) const {
    return turn.target == KvChunks::kAllTargets ? places(turn).targets : 1;
  }
  __device__ __forceinline__ const FanOutTarget& target_of(const Turn& turn, int t) const {
    return target[turn.target == KvChunks::kAllTargets ? t : turn.target];
  }
  __device__ __forceinline__ Share share(const Turn& turn, int share) const {
    const KvStream& of = stream[turn.stream];
    const std::int32_t head = chunks.head_of(turn.chunk), row = chunks.chunk_row(turn.chunk);
    const std::int32_t rows = chunks.rows_from(row, of.positions);
    Share at;
    at.begin = rows * share / shares;
    at.end = rows * (share + 1) / shares;
    at.piece_rows = piece_rows;
    at.row_bytes = static_cast<std::uint32_t>(chunks.row_bytes);
    at.target = (std::int64_t{head} * of.positions + row) * chunks.row_bytes;
    at.own = of.own;
    at.slab = of.slab;
    at.column = head % chunks.kv_heads * (chunks.row_bytes / 2);
    at.row = row;
    at.first = head / chunks.kv_heads * of.positions;
    return at;
  }
  /// Of own rows a whole box: what it has behind the rows of the piece is not stored.
  template <class Piece>
  __device__ __forceinline__ void load(const Piece& piece, std::uint32_t bytes, std::uint32_t to,
                                       const Pipeline<kFanOutStages>& stages) const {
    const Share& at = piece.share();
    const std::uint32_t full = stages.full_barrier();
    if (at.own == nullptr) {
      stages.arrive_full_expect(bytes);
      ptx::bulk_load(to, at.slab + piece.target_offset(), bytes, full);
    } else {
      stages.arrive_full_expect(KvChunks::kPieceBytes);
      ptx::tma_load_3d(to, at.own, at.column, at.row + piece.row(), at.first, full);
    }
  }
};

using KvFanOutShared = FanOutShared<KvFanOutPlan>;

/// Whose keys and values the two streams of group `group` are: own ones first, then those of the rail peers,
/// in the order in which they come. The node before this one begins with it.
__device__ __forceinline__ std::int32_t source_of_streams(const KvGatherParameters& p, std::int32_t group) {
  return group == 0 ? p.gather.rank : p.rail[p.rails - group];
}

/// Keys or values of `source`. One thread. Own ones go to the other ranks of the node, and here when they are
/// put from here; others to the other ranks of the node, and they are counted here too.
__device__ __forceinline__ void describe_kv_stream(const KvGatherParameters& p, std::int32_t source,
                                                   std::int32_t tensor, KvStream& stream) {
  const bool own = source == p.gather.rank;
  stream.stores = p.gather.near + (own && p.rails > 0 ? 1 : 0);
  stream.targets = own ? stream.stores : p.gather.near + 1;
  stream.rows_at =
      lent_half_at(p.endpoint.lent->launches, p.half_bytes) + p.gather.slab_offset(source, tensor);
  stream.ready_at = p.gather.ready_offset(source, tensor);
  stream.own = own ? &p.push[tensor] : nullptr;
  stream.slab = p.lent[p.local_rank] + stream.rows_at;
  stream.positions = p.gather.positions(source);
}

/// One thread.
__device__ __forceinline__ void describe_kv_streams(const KvGatherParameters& p, KvFanOutPlan& plan) {
  plan.chunks = p.gather;
  plan.shares = p.gather.shares;
  plan.piece_rows = p.gather.piece_rows();
  describe_targets(p.local_rank, p.gather.near + 1, p.lent, p.words, plan.target);
  for (std::int32_t i = 0; i < p.gather.streams(); ++i)
    describe_kv_stream(p, source_of_streams(p, i / KvChunks::kTensors), i % KvChunks::kTensors,
                       plan.stream[i]);
}

/// inter_recv: until the chunk of a rail peer's stream has arrived, for bulk copies.
__device__ __forceinline__ bool wait_kv_put(const KvGatherParameters& p, std::uint64_t epoch,
                                            const KvFanOutPlan::Turn& turn) {
  constexpr std::int32_t kTensors = KvChunks::kTensors;
  const std::int32_t source = source_of_streams(p, turn.stream / kTensors);
  const std::uint64_t puts = p.gather.arrivals(epoch, turn.stream % kTensors, turn.chunk);
  if (!wait_arrival(p.endpoint, source, 0, puts, DeviceRole::kInterRecv)) return false;
  ptx::fence_proxy_async_global();
  return true;
}

/// One own chunk to all rail peers, when it is whole in the own slab. One thread. False when it gave up.
__device__ __forceinline__ bool put_own_chunk(const KvGatherParameters& p, std::uint64_t epoch,
                                              std::int32_t tensor, std::int32_t chunk) {
  const KvGatherPlan& gather = p.gather;
  const std::int32_t me = gather.rank;
  if (!wait_kv_chunk(p, epoch, me, tensor, chunk, DeviceRole::kInterSend)) return false;
  // Carries the stores of all pushing CTAs on to whoever reads the ring.
  const ptx::SysReleased released = ptx::fence_acq_rel_sys();
  const std::uint64_t half = lent_half_at(p.endpoint.lent->launches, p.half_bytes);
  const device::Place place{p.region, half + gather.slab_offset(me, tensor) + gather.chunk_offset(me, chunk)};
  const std::uint64_t bytes = gather.chunk_bytes(me, chunk);
  for (std::int32_t i = 0; i < p.rails; ++i)
    if (!put(p.endpoint, p.rail[i], 0, place, place, bytes, DeviceRole::kInterSend, released)) return false;
  return true;
}

/// inter_send: own chunks to all rail peers, as they become whole. One thread. Ends when the sources of the
/// puts may be overwritten: the halves rest on it, and whoever destroys the operation after its last launch.
__device__ __forceinline__ void put_own_kv(const KvGatherParameters& p, std::uint64_t epoch) {
  for (std::int32_t chunk = 0; chunk < p.gather.chunks(); ++chunk) {
    for (std::int32_t tensor = 0; tensor < KvChunks::kTensors; ++tensor)
      if (!put_own_chunk(p, epoch, tensor, chunk)) return;
  }
  const std::uint64_t puts = (epoch + 1) * p.gather.puts();
  for (std::int32_t i = 0; i < p.rails; ++i)
    if (!wait_completed(p.endpoint, p.rail[i], 0, puts, DeviceRole::kInterSend)) return;
}

/// All chunks of all other ranks: a launch that ends has nothing on its way to it. A warp, whose lanes wait
/// for words side by side: there are as many as heads.
__device__ __forceinline__ void wait_all_kv(const KvGatherParameters& p, std::uint64_t epoch) {
  const std::int32_t chunks = p.gather.chunks();
  for (std::int32_t step = 1; step < p.gather.world; ++step) {
    const std::int32_t source = p.gather.source(step);
    for (std::int32_t tensor = 0; tensor < KvChunks::kTensors; ++tensor) {
      for (auto chunk = static_cast<std::int32_t>(threadIdx.x % 32); chunk < chunks; chunk += 32)
        if (!wait_kv_chunk(p, epoch, source, tensor, chunk, DeviceRole::kIntraComm)) return;
    }
  }
}

/// What warps of the CTAs that push do when they have no more to push, and inter_send when keys and values
/// are sent: nothing.
struct NothingAfterGather {
  __device__ __forceinline__ void work() const {}  ///< a whole warp
  __device__ __forceinline__ void send() const {}  ///< one thread
};

/// intra_comm, then inter_recv, in CTA 0 inter_send beside: all threads of a CTA of `kWarps` warps that
/// pushes its share of every chunk. A warp loads, others store and count. CTA 0 ends the launch here. On one
/// node, where pushes wait for nothing, `first_goes_on` may be set: then CTA 0 goes on as the others, and is
/// to call wait_all_kv() before it ends the launch.
template <int kWarps, class After = NothingAfterGather>
__device__ __forceinline__ void gather_kv(const KvGatherParameters& p, KvFanOutShared& shared,
                                          bool first_goes_on = false, const After& after = {}) {
  const std::uint64_t epoch = p.endpoint.control->epoch;  // advanced only when every CTA has ended
  const auto share = static_cast<int>(blockIdx.x);
  if (threadIdx.x == 0) describe_kv_streams(p, shared.plan);
  init_fan_out(shared);
  const auto push = [&](int warp) {
    if (threadIdx.x % 32 == 0) {
      if (warp == 0) {
        load_fan_out(shared.plan, share, shared,
                     [&](const KvFanOutPlan::Turn& turn) { return wait_kv_put(p, epoch, turn); });
      } else if (warp <= kFanOutStorers) {
        store_fan_out(shared.plan, share, warp - 1, p.endpoint.trace, PacedLinks{}, shared);
      }
    }
    __syncwarp();  // the lanes that had nothing to do meet the one that had
    if (warp == 1 && share == 0 && !first_goes_on) wait_all_kv(p, epoch);
    __syncwarp();
    after.work();
  };
  const auto send = [&](int) {
    put_own_kv(p, epoch);
    after.send();
  };
  communicate<kWarps>(p.endpoint, p.rails > 0 ? 1 : 0, push, send, first_goes_on);
  end_fan_out(shared);
}

}  // namespace mkernel::kernels
