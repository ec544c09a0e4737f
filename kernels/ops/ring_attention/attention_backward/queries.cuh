// What a backward pass does with queries before and after its tasks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/cuda/attention/sm90_backward_config.cuh"
#include "kernels/cuda/comm/endpoint.cuh"
#include "kernels/cuda/gemm/sm90_element.cuh"
#include "kernels/cuda/ptx/fence.cuh"
#include "kernels/cuda/ptx/global.cuh"
#include "kernels/cuda/ptx/vector.cuh"
#include "kernels/cuda/sync/claim.cuh"
#include "kernels/cuda/sync/wait.cuh"
#include "kernels/ops/ring_attention/attention_backward/queries.h"

namespace mkernel::kernels {

inline constexpr float kInfinite = std::numeric_limits<float>::infinity();
inline constexpr float kLog2e = 1.44269504088896341F;

/// The bounded wait for a word of another CTA of this launch, which may wait for keys of another rank.
__device__ __forceinline__ bool wait_backward_word(const device::Endpoint& endpoint,
                                                   const std::uint64_t* word, std::uint64_t expected,
                                                   std::int32_t tile) {
  return wait_until([word] { return ptx::ld_acquire_gpu(word); }, expected,
                    {DeviceRole::kCompute, DeviceTag::kTileReady, -1, static_cast<std::uint32_t>(tile)},
                    at_stage(wait_scope(endpoint), 1));
}

/// A warp's part of the sum of out x d_out of one row: 8 elements at `offset` bytes of both.
template <DataType kType>
__device__ __forceinline__ float product_of_8(const AttentionBackwardQueries& p, std::int64_t offset) {
  const uint4 left = ptx::ld_once_v4(static_cast<const std::byte*>(p.out) + offset);
  const uint4 right = ptx::ld_once_v4(static_cast<const std::byte*>(p.d_out_rows) + offset);
  const std::uint32_t pairs[4][2] = {
      {left.x, right.x}, {left.y, right.y}, {left.z, right.z}, {left.w, right.w}};
  float sum = 0;
#pragma unroll
  for (const auto& pair : pairs) {
    const float2 a = widen_pair<kType>(pair[0]), b = widen_pair<kType>(pair[1]);
    sum = fmaf(a.x, b.x, fmaf(a.y, b.y, sum));
  }
  return sum;
}

/// Which rows a tile of queries has. `Queries`, here and below: AttentionBackwardQueries, or what has another
/// rows_of_tile() than that.
template <class Config, class Queries>
__device__ __forceinline__ AttentionBackwardQueries::Rows backward_rows_of(const Queries& p,
                                                                           std::int32_t tile) {
  if constexpr (Config::kWindow) {
    return p.rows_of_window_tile(tile);
  } else {
    return p.rows_of_tile(tile);
  }
}

/// What is known of the rows of one tile of queries before the pass. One warp.
template <class Config, class Queries>
__device__ __forceinline__ void prepare_backward_rows(const Queries& p, std::int32_t unit) {
  constexpr int kLanes = Config::kHeadDim / 8;  // that share a row
  constexpr int kRows = 32 / kLanes;            // of the warp at a time
  const std::int32_t head = unit / p.query_tiles, tile = unit % p.query_tiles;
  const std::int32_t batch = head / p.heads, lane = static_cast<std::int32_t>(threadIdx.x) % 32;
  const AttentionBackwardQueries::Rows queries = backward_rows_of<Config>(p, tile);
  AttentionBackwardRows& rows = p.rows[unit];
#pragma unroll 4
  for (std::int32_t row = lane / kLanes; row < Config::kTileQueries; row += kRows) {
    const std::int32_t query = queries.begin + row;
    const bool there = query < queries.end;
    float delta = 0;
    if (there) {
      delta =
          product_of_8<Config::kInput>(p, (std::int64_t{batch} * p.queries + query) * p.row_bytes +
                                              (head % p.heads * Config::kHeadDim + lane % kLanes * 8) * 2);
    }
#pragma unroll
    for (int step = 1; step < kLanes; step *= 2) delta += __shfl_xor_sync(~0U, delta, step);
    if (lane % kLanes != 0) continue;
    std::int64_t at = std::int64_t{head} * p.queries + query;
    if constexpr (Config::kWindow) at = p.lse_at(head, query);
    const float lse = there ? p.lse[at] : -kInfinite;
    rows.lse[row] = lse == -kInfinite ? kInfinite : lse * kLog2e;
    rows.delta[row] = delta;
  }
  __syncwarp();
  if (lane == 0) ptx::red_add_release_gpu(&p.prepared[head], 1ULL);
}

/// d_q of one tile, once all tiles of keys, `adds` of them, have added to it: rounded to the io type. One
/// warp.
template <class Config, class Queries>
__device__ __forceinline__ void narrow_backward_sums(const device::Endpoint& endpoint, const Queries& p,
                                                     std::int32_t unit, std::int32_t adds) {
  const std::int32_t head = unit / p.query_tiles, tile = unit % p.query_tiles;
  const std::int32_t batch = head / p.heads, lane = static_cast<std::int32_t>(threadIdx.x % 32);
  const AttentionBackwardQueries::Rows rows = backward_rows_of<Config>(p, tile);
  const std::int64_t first = std::int64_t{unit} * Config::kUnits;
  if (lane < Config::kUnits && adds > 0) {
    const std::uint64_t all = AttentionBackwardQueries::added_word(endpoint.control->epoch, adds);
    wait_backward_word(endpoint, &p.added[first + lane], all, tile);
  }
  __syncwarp();
  for (int part = 0; part < 4 * Config::kUnits; ++part) {
    const int piece = part / 4, warp = part % 4;
    const auto* from =
        reinterpret_cast<const float4*>(p.sums + (first + piece) * Config::kUnitElements) + warp * 32 + lane;
    float4 sums[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) sums[j] = adds > 0 ? __ldcg(from + j * 128) : float4{0, 0, 0, 0};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::int32_t query = rows.begin + warp * 16 + lane / 4 + 8 * half;
      if (query >= rows.end) continue;
      std::byte* const row = static_cast<std::byte*>(p.d_q) +
                             (std::int64_t{batch} * p.queries + query) * p.row_bytes +
                             (head % p.heads * Config::kHeadDim + piece * 64 + lane % 4 * 2) * 2;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float low = half == 0 ? sums[j].x : sums[j].z, high = half == 0 ? sums[j].y : sums[j].w;
        *reinterpret_cast<std::uint32_t*>(row + j * 16) =
            narrow_pair<Config::kInput>(low * p.scale, high * p.scale);
      }
    }
  }
}

/// CTA number `cta` of those that prepare, all its warps: the rows of some tiles.
template <class Config, class Queries>
__device__ __forceinline__ void prepare_all_backward_rows(const Queries& p, std::int32_t cta) {
  constexpr int kWarps = Config::kThreads / 32;
  const std::int32_t units = p.all_heads * p.query_tiles;
  const std::int32_t warp = cta * kWarps + static_cast<std::int32_t>(threadIdx.x / 32);
  for (std::int32_t unit = warp; unit < units; unit += p.preparing * kWarps)
    prepare_backward_rows<Config>(p, unit);
}

/// What the feeds of the backward body (cuda/attention/sm90_backward.cuh) have in common: the queries.
template <class Config>
class AttentionBackwardQueryFeed {
 public:
  static constexpr bool kPacked = false;

  __device__ __forceinline__ void wait_rows(const AttentionBackwardTask& task, int head) const {
    const std::uint64_t* const word = &q_.prepared[task.head + head];
    wait_backward_word(endpoint_, word, (epoch() + 1) * static_cast<std::uint64_t>(q_.query_tiles),
                       task.head + head);
    // What was acquired was written by ordinary stores; the copy engine reads it next.
    ptx::fence_proxy_async_global();
  }
  __device__ __forceinline__ const TensorMap& row_map() const { return q_.row_map; }
  __device__ __forceinline__ std::int32_t tile_at(const AttentionBackwardTask& task, int head,
                                                  int tile) const {
    return (task.head + head) * q_.query_tiles + tile;
  }

  __device__ __forceinline__ std::int32_t unit(const AttentionBackwardTask& task, int head, int tile,
                                               int unit) const {
    return tile_at(task, head, tile) * Config::kUnits + unit;
  }
  __device__ __forceinline__ float* sums(std::int32_t unit) const {
    return q_.sums + std::int64_t{unit} * Config::kUnitElements;
  }
  __device__ __forceinline__ void wait_turn(std::int32_t unit, std::int32_t turn) const {
    wait_backward_word(endpoint_, &q_.added[unit], AttentionBackwardQueries::added_word(epoch(), turn),
                       unit / Config::kUnits);
    // The adds of other CTAs, which were acquired, come before that of this one's copy engine.
    ptx::fence_proxy_async_global();
  }
  __device__ __forceinline__ void pass_turn(std::int32_t unit, std::int32_t turn) const {
    ptx::st_release_gpu(&q_.added[unit], AttentionBackwardQueries::added_word(epoch(), turn + 1));
  }

  __device__ __forceinline__ float scale() const { return q_.scale; }
  __device__ __forceinline__ float scale_log2() const { return q_.scale_log2; }
  __device__ __forceinline__ const DeviceTrace& trace() const { return endpoint_.trace; }

 protected:
  __device__ __forceinline__ AttentionBackwardQueryFeed(const device::Endpoint& endpoint,
                                                        const AttentionBackwardQueries& queries)
      : endpoint_(endpoint), q_(queries) {}

  /// Read again each time: registers are few, and it changes only when every CTA has ended.
  __device__ __forceinline__ std::uint64_t epoch() const { return endpoint_.control->epoch; }
  /// When there are no more tasks: the next piece of what is left.
  __device__ __forceinline__ std::uint64_t claim_left() const {
    return claim_unit(&q_.counters->next_unit[epoch() & 1]);
  }

 private:
  const device::Endpoint& endpoint_;
  const AttentionBackwardQueries& q_;
};

}  // namespace mkernel::kernels
