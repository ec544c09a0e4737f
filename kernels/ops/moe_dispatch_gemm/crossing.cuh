// What crosses nodes: counts, rows that are staged, put and forwarded, sums that return. Only the rank that
// owns the memory reads what a NIC wrote there, and pushes it on in its node.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/comm/endpoint.cuh"
#include "kernels/cuda/ptx/fence.cuh"
#include "kernels/cuda/ptx/global.cuh"
#include "kernels/cuda/ptx/vector.cuh"
#include "kernels/ops/moe_dispatch_gemm/parameters.h"
#include "kernels/ops/moe_dispatch_gemm/push.cuh"
#include "kernels/ops/moe_dispatch_gemm/rows.cuh"
#include "kernels/ops/moe_dispatch_gemm/table.cuh"
#include "kernels/ops/moe_dispatch_gemm/workers.cuh"

namespace mkernel::kernels {

/// The working threads of CTA 0: counts of the rail peers, as they arrive, to the ranks of this node.
__device__ __forceinline__ bool moe_forward_counts(const MoeParameters& p, std::uint64_t epoch,
                                                   const MoeWorkers& workers, std::int32_t* told) {
  const PushOrder order = p.plan.order(p.rank);
  for (std::int32_t turn = 0; turn < p.plan.others(); ++turn) {
    const std::int32_t source = order.rail_peer(turn);
    if (workers.thread() == 0) {
      *told = wait_arrival(p.endpoint, static_cast<std::uint32_t>(source), ExpertExchangePlan::kRowsLane,
                           p.plan.counts_arrivals(epoch), DeviceRole::kInterRecv);
    }
    if (moe_told(workers, told) == 0) return false;
    const std::uint64_t at = moe_counts_at(p, epoch, source);
    const std::byte* from = moe_memory(p, p.rank) + at;
    for (std::int32_t ahead = 1; ahead < order.ranks_per_node; ++ahead) {
      std::byte* to = moe_memory(p, order.neighbour(ahead)) + at;
      for (std::uint64_t byte = 16 * static_cast<std::uint64_t>(workers.thread());
           byte < p.places.counts_bytes; byte += 16 * static_cast<std::uint64_t>(workers.threads()))
        ptx::st_v4(to + byte, ptx::ld_once_v4(from + byte));
    }
    workers.sync();
    if (workers.thread() != 0) continue;
    const ptx::SysReleased released = ptx::fence_acq_rel_sys();
    for (std::int32_t ahead = 1; ahead <= order.ranks_per_node; ++ahead) {
      std::uint64_t* words = moe_words(p, order.neighbour(ahead), p.places.counted);
      ptx::st_relaxed_sys(words + source, ExpertExchangePlan::stamp(epoch), released);
    }
  }
  return true;
}

/// One warp: the row of a token that crosses, behind what the rail peer must know of it.
__device__ __forceinline__ void moe_stage_row(const MoeParameters& p, std::uint64_t epoch, std::int32_t turn,
                                              std::int32_t row) {
  const std::int32_t lane = static_cast<std::int32_t>(threadIdx.x) % 32;
  const std::int32_t of_turn = turn * p.plan.max_tokens, token = p.scratch.crossing[of_turn + row];
  std::byte* out = moe_memory(p, p.rank) + p.places.crossing_out +
                   static_cast<std::uint64_t>(of_turn + row) * p.places.crossing_bytes;
  const std::int32_t entry = token * p.routed.topk + lane;
  const std::int32_t expert = lane < p.routed.topk ? p.routed.experts[entry] : 0;
  const bool there = lane < p.routed.topk && p.plan.order(p.rank).node_turn(expert) == turn;
  const std::uint32_t all = __ballot_sync(~0U, there);
  if (there) {
    auto* entries = reinterpret_cast<CrossingEntry*>(out + sizeof(CrossingHead));
    entries[__popc(all & ((1U << lane) - 1))] = {expert, p.scratch.entry_index[entry],
                                                 p.routed.weights[entry]};
  }
  if (lane == 0) *reinterpret_cast<CrossingHead*>(out) = {p.scratch.returning[of_turn + token], __popc(all)};
  moe_copy_row(out + p.places.row_in_crossing, p.x + std::int64_t{token} * p.plan.row_bytes,
               static_cast<std::int32_t>(p.plan.row_bytes));
  __syncwarp();
  if (lane == 0) {
    ptx::st_release_gpu(moe_words(p, p.rank, p.places.staged_word) + of_turn + row,
                        ExpertExchangePlan::stamp(epoch));
  }
}

/// Rows that a warp stages between two units of pushes. A GPU copies several times as fast as the wire takes
/// what it stages, and products wait for the first pushes.
inline constexpr int kStagedBetween = 2;

/// One warp, when the table is built: own tokens in the order in which they cross, and between them the first
/// units of `pushes`.
template <DataType kType>
__device__ __forceinline__ void moe_stage(const MoeParameters& p, std::uint64_t epoch,
                                          MoePushes<kType>& pushes) {
  int staged = 0;
  moe_claim_rows(p, &p.scratch.counters[epoch & 1].staged, p.scratch.crossings,
                 [&](std::int32_t turn, std::int32_t row) {
                   moe_stage_row(p, epoch, turn, row);
                   if (++staged % kStagedBetween == 0) pushes.push_first();
                   return true;
                 });
}

/// One lane: what it waits for before it forwards a row.
struct MoeRowArrival {
  std::uint32_t source;
  std::uint64_t count;

  __device__ __forceinline__ MoeRowArrival(const MoeParameters& p, std::uint64_t epoch, std::int32_t turn,
                                           std::int32_t row)
      : source(static_cast<std::uint32_t>(p.plan.order(p.rank).rail_peer(turn))),
        count(p.plan.rows_arrivals(epoch, p.plan.piece_of(row, p.scratch.crossed[turn]))) {}

  __device__ __forceinline__ bool here(const MoeParameters& p) const {
    return has_arrived(p.endpoint, source, ExpertExchangePlan::kRowsLane, count);
  }
  __device__ __forceinline__ bool wait(const MoeParameters& p) const {
    return wait_arrival(p.endpoint, source, ExpertExchangePlan::kRowsLane, count, DeviceRole::kInterRecv);
  }
};

/// One warp: a row that has arrived, to the owners of its experts here. While it is on its way, rows of
/// `pushes` are pushed. False: a wait gave up.
template <DataType kType>
__device__ __forceinline__ bool moe_forward_row(const MoeParameters& p, std::uint64_t epoch,
                                                std::int32_t turn, std::int32_t row,
                                                MoePushes<kType>& pushes) {
  const std::int32_t lane = static_cast<std::int32_t>(threadIdx.x) % 32;
  const std::int32_t of_turn = turn * p.plan.max_tokens;
  const MoeRowArrival arrival(p, epoch, turn, row);
  while (!moe_all(lane != 0 || arrival.here(p)) && pushes.push()) continue;
  if (!moe_all(lane != 0 || arrival.wait(p))) return false;
  const std::byte* in = moe_memory(p, p.rank) + p.places.crossing_in +
                        static_cast<std::uint64_t>(of_turn + row) * p.places.crossing_bytes;
  const CrossingHead head = *reinterpret_cast<const CrossingHead*>(in);
  MoePush to;
  float weight = 0;
  if (lane < head.entries) {
    const CrossingEntry& entry = reinterpret_cast<const CrossingEntry*>(in + sizeof(CrossingHead))[lane];
    weight = entry.weight;
    to = moe_push_to(p, 1 + turn, entry.expert, entry.index);
    moe_store_origin(p, to, p.plan.crossed_entry(turn, head.returning) + lane);
  }
  for (std::int32_t i = 0; i < head.entries; ++i) {
    const std::int32_t owner = __shfl_sync(~0U, to.owner, i), at = __shfl_sync(~0U, to.row, i);
    moe_write_row<kType>(p, moe_pool_row(p, owner, at), in + p.places.row_in_crossing,
                         __shfl_sync(~0U, weight, i));
  }
  __syncwarp();
  if (lane < head.entries) moe_signal_rows(p, to, head.entries);
  __syncwarp();
  if (lane == 0) {
    p.scratch.crossed_row[of_turn + head.returning] = row;
    ptx::st_release_gpu(moe_words(p, p.rank, p.places.forwarded_word) + of_turn + head.returning,
                        ExpertExchangePlan::stamp(epoch));
  }
  return true;
}

/// One warp, after its first pushes: rows as they arrive.
template <DataType kType>
__device__ __forceinline__ bool moe_forward(const MoeParameters& p, std::uint64_t epoch,
                                            MoePushes<kType>& pushes) {
  return moe_claim_rows(p, &p.scratch.counters[epoch & 1].forwarded, p.scratch.crossed,
                        [&](std::int32_t turn, std::int32_t row) {
                          return moe_forward_row<kType>(p, epoch, turn, row, pushes);
                        });
}

/// inter_send: one whole warp of CTA 0, over several nodes.
class MoeSender {
 public:
  __device__ __forceinline__ MoeSender(const MoeParameters& p, std::uint64_t epoch)
      : p_(p), epoch_(epoch), order_(p.plan.order(p.rank)) {}

  /// Puts the counts, then the rows, then the sums of what crossed, and reports how many bytes. Ends when
  /// their sources may be overwritten.
  __device__ __forceinline__ void run() const {
    if (!wait(moe_words(p_, p_.rank, p_.places.counted) + p_.rank, DeviceTag::kChunkReady,
              MoeStage::kTable) ||
        !put_counts() || !wait(p_.scratch.table_ready, DeviceTag::kGridBarrier, MoeStage::kTable))
      return;
    const bool refused = moe_refused(p_, epoch_);
    for (const std::uint32_t lane : {ExpertExchangePlan::kRowsLane, ExpertExchangePlan::kSumsLane})
      for (std::int32_t piece = 0; piece < p_.plan.pieces; ++piece)
        for (std::int32_t turn = 0; turn < p_.plan.others(); ++turn)
          if (!put_piece(lane, turn, piece, refused)) return;
    if (!leads()) return;
    p_.scratch.report->sent = sent(refused);
    const std::int32_t last = p_.plan.pieces - 1;
    for (std::int32_t turn = 0; turn < p_.plan.others(); ++turn) {
      const auto peer = static_cast<std::uint32_t>(order_.rail_peer(turn));
      if (!wait_completed(p_.endpoint, peer, ExpertExchangePlan::kRowsLane,
                          p_.plan.rows_arrivals(epoch_, last), kRole) ||
          !wait_completed(p_.endpoint, peer, ExpertExchangePlan::kSumsLane,
                          p_.plan.sums_arrivals(epoch_, last), kRole))
        return;
    }
  }

 private:
  static constexpr DeviceRole kRole = DeviceRole::kInterSend;
  static __device__ __forceinline__ bool leads() { return threadIdx.x % 32 == 0; }

  __device__ __forceinline__ bool wait(const std::uint64_t* word, DeviceTag tag, MoeStage stage) const {
    bool came = true;
    if (leads()) came = moe_wait_own(p_, word, ExpertExchangePlan::stamp(epoch_), kRole, tag, stage);
    return moe_all(came);
  }

  /// The first lane puts, after a fence that stands for what all have acquired.
  __device__ __forceinline__ bool put_alone(std::int32_t turn, std::uint32_t lane, std::uint64_t from,
                                            std::uint64_t to, std::uint64_t bytes) const {
    bool sent = true;
    if (leads()) {
      const ptx::SysReleased released = ptx::fence_acq_rel_sys();
      sent = put(p_.endpoint, static_cast<std::uint32_t>(order_.rail_peer(turn)), lane, {p_.region, from},
                 {p_.region, to}, bytes, kRole, released);
    }
    return moe_all(sent);
  }

  __device__ __forceinline__ bool put_counts() const {
    const std::uint64_t at = moe_counts_at(p_, epoch_, p_.rank);
    for (std::int32_t turn = 0; turn < p_.plan.others(); ++turn)
      if (!put_alone(turn, ExpertExchangePlan::kRowsLane, at, at, p_.places.counts_bytes)) return false;
    return true;
  }

  /// Bytes of the launch.
  __device__ __forceinline__ std::uint64_t sent(bool refused) const {
    std::uint64_t bytes = 0;
    for (std::int32_t turn = 0; turn < p_.plan.others(); ++turn) {
      bytes += p_.places.counts_bytes;
      if (refused) continue;
      bytes += static_cast<std::uint64_t>(p_.scratch.crossings[turn]) * p_.places.crossing_bytes +
               static_cast<std::uint64_t>(p_.scratch.crossed[turn]) * p_.plan.finished_bytes;
    }
    return bytes;
  }

  /// Once its rows are staged, its sums made. A launch that is refused puts as often, nothing each time.
  __device__ __forceinline__ bool put_piece(std::uint32_t lane, std::int32_t turn, std::int32_t piece,
                                            bool refused) const {
    const bool out = lane == ExpertExchangePlan::kRowsLane;
    const std::int32_t rows = refused ? 0 : out ? p_.scratch.crossings[turn] : p_.scratch.crossed[turn];
    const std::int32_t begin = p_.plan.piece_begin(piece, rows), end = p_.plan.piece_begin(piece + 1, rows);
    const std::int32_t of_turn = turn * p_.plan.max_tokens;
    const std::uint64_t* words =
        moe_words(p_, p_.rank, out ? p_.places.staged_word : p_.places.summed_word) + of_turn;
    bool came = true;
    for (std::int32_t row = begin + static_cast<std::int32_t>(threadIdx.x % 32); row < end && came;
         row += 32) {
      came = moe_wait_own(p_, words + row, ExpertExchangePlan::stamp(epoch_), kRole, DeviceTag::kChunkReady,
                          out ? MoeStage::kRows : MoeStage::kFinished);
    }
    if (!moe_all(came)) return false;
    const std::int32_t there = order_.as_seen_from(turn) * p_.plan.max_tokens;
    const std::uint64_t bytes = out ? p_.places.crossing_bytes : p_.plan.finished_bytes;
    const std::uint64_t from = out ? p_.places.crossing_out : p_.places.sum_out;
    const std::uint64_t to = out ? p_.places.crossing_in : p_.places.sum_in;
    return put_alone(turn, lane, from + static_cast<std::uint64_t>(of_turn + begin) * bytes,
                     to + static_cast<std::uint64_t>(there + begin) * bytes,
                     static_cast<std::uint64_t>(end - begin) * bytes);
  }

  const MoeParameters& p_;
  const std::uint64_t epoch_;
  const PushOrder order_;
};

}  // namespace mkernel::kernels
