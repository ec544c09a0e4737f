// The weighted sums of finished rows, at their token's home.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/types.h"
#include "kernels/cuda/comm/endpoint.cuh"
#include "kernels/cuda/gemm/sm90_element.cuh"
#include "kernels/cuda/ptx/global.cuh"
#include "kernels/cuda/ptx/vector.cuh"
#include "kernels/ops/moe_dispatch_gemm/parameters.h"
#include "kernels/ops/moe_dispatch_gemm/rows.cuh"
#include "kernels/ops/moe_dispatch_gemm/table.cuh"
#include "kernels/ops/moe_dispatch_gemm/workers.cuh"

namespace mkernel::kernels {

/// Adds weight * `row` to eight sums.
template <DataType kType>
__device__ __forceinline__ void moe_add(float (&sums)[8], float weight, const uint4& row) {
  const std::uint32_t words[4] = {row.x, row.y, row.z, row.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 values = widen_pair<kType>(words[i]);
    sums[2 * i] = fmaf(weight, values.x, sums[2 * i]);
    sums[2 * i + 1] = fmaf(weight, values.y, sums[2 * i + 1]);
  }
}

/// What a lane holds of the summands of a token: whether there is one, where it lies in this rank's memory,
/// and its weight. Lanes below kMoeMostTopk hold finished rows, those behind them the sums of other nodes,
/// and the last lane the row of the shared expert.
struct MoeSummand {
  bool any = false;
  std::uint64_t at = 0;
  float weight = 0;
};

/// One warp: adds the next `kRows` rows of `left`, the lanes whose rows are still to be added, to the sums.
/// `from`: where a lane reads, from where a row begins. NOTES: all rows are there and every lane reads, so
/// that all loads are under way before the first one is waited for. If one could be left out, the compiler
/// would choose between its result and something else at once, and wait for each load before the next.
template <DataType kType, int kRows>
__device__ __forceinline__ void moe_add_rows(const MoeSummand& mine, const std::byte* from,
                                             std::uint32_t& left, float (&sums)[8]) {
  uint4 rows[kRows];
  float weights[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i, left &= left - 1) {
    const int of = __ffs(static_cast<int>(left)) - 1;
    rows[i] = ptx::ld_once_v4(from + __shfl_sync(~0U, mine.at, of));
    weights[i] = __shfl_sync(~0U, mine.weight, of);
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) moe_add<kType>(sums, weights[i], rows[i]);
}

/// One warp: adds all rows of `left`, `kRows` (a power of two) at a time, and what is left over by halves.
template <DataType kType, int kRows>
__device__ __forceinline__ void moe_add_all(const MoeSummand& mine, const std::byte* from,
                                            std::uint32_t& left, float (&sums)[8]) {
  while (__popc(left) >= kRows) moe_add_rows<kType, kRows>(mine, from, left, sums);
  if constexpr (kRows > 1) moe_add_all<kType, kRows / 2>(mine, from, left, sums);
}

/// One warp: the sums of some bytes of what its lanes hold, in lane order, rounded once. A lane has 16 bytes
/// of `kRows` rows under way at a time, which is how fast a warp reads.
template <DataType kType, int kRows>
__device__ __forceinline__ void moe_add_up(const MoeParameters& p, const MoeSummand& mine, std::byte* to,
                                           const MoeSumPart& bytes) {
  const std::int32_t lane = static_cast<std::int32_t>(threadIdx.x) % 32;
  const std::byte* memory = moe_memory(p, p.rank);
  const std::uint32_t all = __ballot_sync(~0U, mine.any);
  for (std::int32_t first = bytes.begin; first < bytes.end; first += kMoeSumBytes) {
    const std::int32_t at = first + lane * 16;
    float sums[8] = {};
    std::uint32_t left = all;
    // Lanes behind the end read what the last one reads.
    moe_add_all<kType, kRows>(mine, memory + min(at, bytes.end - 16), left, sums);
    if (at >= bytes.end) continue;
    ptx::st_v4(to + at, {narrow_pair<kType>(sums[0], sums[1]), narrow_pair<kType>(sums[2], sums[3]),
                         narrow_pair<kType>(sums[4], sums[5]), narrow_pair<kType>(sums[6], sums[7])});
  }
}

inline constexpr std::int32_t kMoeSharedLane = 31;
static_assert(kMoeMostTopk + kMaxKernelNodes - 1 <= kMoeSharedLane);

/// One lane: waits for the finished row of an entry of finished[], which an expert of `owner` makes.
__device__ __forceinline__ bool moe_wait_finished(const MoeParameters& p, std::uint64_t epoch,
                                                  std::int32_t entry, std::int32_t owner) {
  const DeviceWaitSite site{DeviceRole::kInterReduce, DeviceTag::kTileReady, owner,
                            static_cast<std::uint32_t>(entry)};
  return wait_at_least(moe_words(p, p.rank, p.places.finished_word) + entry, ExpertExchangePlan::stamp(epoch),
                       site, moe_scope(p, MoeStage::kFinished));
}

__device__ __forceinline__ std::uint64_t moe_finished_at(const MoeParameters& p, std::int32_t entry) {
  return p.places.finished + static_cast<std::uint64_t>(entry) * p.plan.finished_bytes;
}

/// What a finished row is multiplied by, when `weight` is its weight.
__device__ __forceinline__ float moe_weight_of_sum(const MoeParameters& p, float weight) {
  return p.weights_on_input ? 1 : weight;
}

/// One warp: a part of an own token: the rows of this node's experts in top-k order, then the sums of the
/// other nodes, from the next one on, then the row of the shared expert. False: a wait gave up.
template <DataType kType, int kRows>
__device__ __forceinline__ bool moe_sum_own(const MoeParameters& p, std::uint64_t epoch, std::int32_t token,
                                            std::int32_t part) {
  const std::int32_t lane = static_cast<std::int32_t>(threadIdx.x) % 32, others = p.plan.others();
  const PushOrder order = p.plan.order(p.rank);
  MoeSummand mine;
  bool came = true;
  if (lane < p.routed.topk) {
    const std::int32_t entry = token * p.routed.topk + lane, expert = p.routed.experts[entry];
    mine = {others == 0 || order.node_turn(expert) == others, moe_finished_at(p, entry),
            moe_weight_of_sum(p, p.routed.weights[entry])};
    if (mine.any) came = moe_wait_finished(p, epoch, entry, p.plan.owners.owner(expert));
  } else if (const std::int32_t turn = lane - kMoeMostTopk; turn >= 0 && turn < others) {
    const std::int32_t returning = p.scratch.returning[turn * p.plan.max_tokens + token];
    if (returning >= 0) {
      const std::int32_t row = turn * p.plan.max_tokens + returning;
      mine = {true, p.places.sum_in + static_cast<std::uint64_t>(row) * p.plan.finished_bytes, 1};
      const std::int32_t piece = p.plan.piece_of(returning, p.scratch.crossings[turn]);
      came = wait_arrival(p.endpoint, static_cast<std::uint32_t>(order.rail_peer(turn)),
                          ExpertExchangePlan::kSumsLane, p.plan.sums_arrivals(epoch, piece),
                          DeviceRole::kInterReduce);
    }
  } else if (lane == kMoeSharedLane && p.plan.shared_columns1 > 0) {
    const std::int32_t entry = p.plan.shared_entry(token);
    mine = {true, moe_finished_at(p, entry), p.shared_weights == nullptr ? 1 : p.shared_weights[token]};
    came = moe_wait_finished(p, epoch, entry, p.rank);
  }
  if (!moe_all(came)) return false;
  const MoeSumPart bytes = moe_sum_part(p.n * 2, p.sum_parts, part);
  moe_add_up<kType, kRows>(p, mine, p.y + std::int64_t{token} * p.n * 2, bytes);
  return true;
}

/// One warp: a token that crossed from a rail peer: the rows of this node's experts, to be put back.
template <DataType kType, int kRows>
__device__ __forceinline__ bool moe_sum_crossed(const MoeParameters& p, std::uint64_t epoch,
                                                std::int32_t turn, std::int32_t returning) {
  const std::int32_t lane = static_cast<std::int32_t>(threadIdx.x) % 32;
  const std::int32_t of_turn = turn * p.plan.max_tokens;
  bool came = true;
  if (lane == 0) {
    came = moe_wait_own(p, moe_words(p, p.rank, p.places.forwarded_word) + of_turn + returning,
                        ExpertExchangePlan::stamp(epoch), DeviceRole::kInterReduce, DeviceTag::kChunkReady,
                        MoeStage::kRows);
  }
  if (!moe_all(came)) return false;
  const std::byte* in = moe_memory(p, p.rank) + p.places.crossing_in +
                        static_cast<std::uint64_t>(of_turn + p.scratch.crossed_row[of_turn + returning]) *
                            p.places.crossing_bytes;
  MoeSummand mine;
  if (lane < reinterpret_cast<const CrossingHead*>(in)->entries) {
    const CrossingEntry& entry = reinterpret_cast<const CrossingEntry*>(in + sizeof(CrossingHead))[lane];
    const std::int32_t number = p.plan.crossed_entry(turn, returning) + lane;
    mine = {true, moe_finished_at(p, number), moe_weight_of_sum(p, entry.weight)};
    came = moe_wait_finished(p, epoch, number, p.plan.owners.owner(entry.expert));
  }
  if (!moe_all(came)) return false;
  moe_add_up<kType, kRows>(p, mine,
                           moe_memory(p, p.rank) + p.places.sum_out +
                               static_cast<std::uint64_t>(of_turn + returning) * p.plan.finished_bytes,
                           {0, p.n * 2});
  __syncwarp();
  if (lane == 0) {
    ptx::st_release_gpu(moe_words(p, p.rank, p.places.summed_word) + of_turn + returning,
                        ExpertExchangePlan::stamp(epoch));
  }
  return true;
}

/// Tokens that crossed first, since other nodes wait for them, then own ones, each in the order in which
/// their last row is computed.
template <DataType kType, int kRows>
__device__ __forceinline__ void moe_sum_tokens(const MoeParameters& p, std::uint64_t epoch) {
  // The order is there when all chunks are placed.
  bool placed = true;
  if (threadIdx.x % 32 == 0) {
    placed = moe_wait_own(p, p.scratch.placed, (epoch + 1) * static_cast<std::uint64_t>(p.dispatch_ctas),
                          DeviceRole::kInterReduce, DeviceTag::kGridBarrier, MoeStage::kTable) &&
             moe_wait_own(p, p.scratch.table_ready, ExpertExchangePlan::stamp(epoch),
                          DeviceRole::kInterReduce, DeviceTag::kGridBarrier, MoeStage::kTable);
  }
  if (!moe_all(placed) || moe_refused(p, epoch)) return;
  MoeCounters& counters = p.scratch.counters[epoch & 1];
  if (p.plan.others() > 0) {
    const bool all = moe_claim_rows(p, &counters.crossed_sums, p.scratch.crossed,
                                    [&](std::int32_t turn, std::int32_t returning) {
                                      return moe_sum_crossed<kType, kRows>(p, epoch, turn, returning);
                                    });
    if (!all) return;
  }
  const auto parts = static_cast<std::uint32_t>(p.sum_parts);
  for (;;) {
    const std::uint64_t unit = claim_unit(&counters.sums);
    if (unit >= static_cast<std::uint64_t>(p.routed.tokens) * parts) return;
    const auto number = static_cast<std::uint32_t>(unit);
    if (!moe_sum_own<kType, kRows>(p, epoch, p.scratch.token_order[number / parts],
                                   static_cast<std::int32_t>(number % parts)))
      return;
  }
}

/// One warp with nothing else to do. `kRows`: of a token, that it has under way at a time; as many as top-k
/// mostly is, unless registers are few.
template <DataType kType, int kRows = 8>
__device__ __forceinline__ void moe_sum(const MoeParameters& p, std::uint64_t epoch) {
  const MoeTraced work(p, DeviceWork::kSum);
  moe_sum_tokens<kType, kRows>(p, epoch);
}

}  // namespace mkernel::kernels
