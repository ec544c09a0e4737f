// The kernel of the backward pass of attention of a rank alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/cuda/attention/sm90_backward.cuh"
#include "kernels/cuda/launch/first_cta.cuh"
#include "kernels/cuda/ptx/fence.cuh"
#include "kernels/cuda/ptx/global.cuh"
#include "kernels/cuda/ptx/vector.cuh"
#include "kernels/cuda/sync/claim.cuh"
#include "kernels/cuda/sync/wait.cuh"
#include "kernels/ops/ring_attention/backward_parameters.h"

namespace mkernel::kernels {

inline constexpr float kInfinite = std::numeric_limits<float>::infinity();
inline constexpr float kLog2e = 1.44269504088896341F;

/// The bounded wait for a word of another CTA of this launch.
__device__ __forceinline__ bool wait_backward_word(const AttentionBackwardParameters& p,
                                                   const std::uint64_t* word, std::uint64_t expected,
                                                   std::int32_t tile) {
  return wait_until([word] { return ptx::ld_acquire_gpu(word); }, expected,
                    {DeviceRole::kCompute, DeviceTag::kTileReady, -1, static_cast<std::uint32_t>(tile)},
                    {p.endpoint.control, p.endpoint.deadline_ns, p.endpoint.trace});
}

/// A warp's part of the sum of out x d_out of one row: 8 elements at `offset` bytes of both.
template <DataType kType>
__device__ __forceinline__ float product_of_8(const AttentionBackwardParameters& p, std::int64_t offset) {
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

/// What is known of the rows of one tile of queries before the pass. One warp.
template <class Config>
__device__ __forceinline__ void prepare_backward_rows(const AttentionBackwardParameters& p,
                                                      std::int32_t unit) {
  constexpr int kLanes = Config::kHeadDim / 8;  // that share a row
  constexpr int kRows = 32 / kLanes;            // of the warp at a time
  const std::int32_t head = unit / p.query_tiles, tile = unit % p.query_tiles;
  const std::int32_t batch = head / p.heads, lane = static_cast<std::int32_t>(threadIdx.x) % 32;
  AttentionBackwardRows& rows = p.rows[unit];
#pragma unroll 4
  for (std::int32_t row = lane / kLanes; row < Config::kTileQueries; row += kRows) {
    const std::int32_t query = tile * Config::kTileQueries + row;
    const bool there = query < p.queries;
    float delta = 0;
    if (there) {
      delta =
          product_of_8<Config::kInput>(p, (std::int64_t{batch} * p.queries + query) * p.row_bytes +
                                              (head % p.heads * Config::kHeadDim + lane % kLanes * 8) * 2);
    }
#pragma unroll
    for (int step = 1; step < kLanes; step *= 2) delta += __shfl_xor_sync(~0U, delta, step);
    if (lane % kLanes != 0) continue;
    const float lse = there ? p.lse[std::int64_t{head} * p.queries + query] : -kInfinite;
    rows.lse[row] = lse == -kInfinite ? kInfinite : lse * kLog2e;
    rows.delta[row] = delta;
  }
  __syncwarp();
  if (lane == 0) ptx::red_add_release_gpu(&p.prepared[head], 1ULL);
}

/// d_q of one tile, once all tiles of keys have added to it: rounded to the io type. One warp.
template <class Config>
__device__ __forceinline__ void narrow_backward_sums(const AttentionBackwardParameters& p,
                                                     std::uint64_t epoch, std::int32_t unit) {
  const std::int32_t head = unit / p.query_tiles, tile = unit % p.query_tiles;
  const std::int32_t batch = head / p.heads, lane = static_cast<std::int32_t>(threadIdx.x % 32);
  const std::int32_t adds = p.tasks.adds(tile);
  const std::int64_t first = std::int64_t{unit} * Config::kUnits;
  if (lane < Config::kUnits) {
    wait_backward_word(p, &p.added[first + lane], (epoch + 1) * static_cast<std::uint64_t>(adds), tile);
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
      const std::int32_t query = tile * Config::kTileQueries + warp * 16 + lane / 4 + 8 * half;
      if (query >= p.queries) continue;
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

/// The feed: CTAs take the tasks of the plan in order, each the next one as soon as it has time.
template <class Config>
class AttentionBackwardFeed {
 public:
  explicit __device__ __forceinline__ AttentionBackwardFeed(const AttentionBackwardParameters& p) : p_(p) {}

  __device__ __forceinline__ bool next(AttentionBackwardTask& task) const {
    const std::uint64_t claimed = ptx::atom_add_relaxed_gpu(&p_.counters->next_task[epoch() & 1], 1);
    if (claimed >= static_cast<std::uint64_t>(p_.tasks.tasks())) return false;
    const AttentionBackwardTasks::Place place = p_.tasks.place(static_cast<std::int32_t>(claimed));
    task.walk = p_.tasks.walk(place);
    task.heads = p_.group;
    task.downwards = place.downwards;
    task.steps = AttentionBackwardSteps(task.walk, task.heads).steps();
    task.key = place.tile * Config::kTileKeys;
    task.keys = p_.keys;
    task.key_first = place.batch * p_.keys;
    task.key_column = place.kv_head * Config::kHeadDim;
    task.query_first = place.batch * p_.queries;
    task.query_column = place.kv_head * p_.group * Config::kHeadDim;
    task.first_key = p_.keys - p_.queries;
    task.head = place.batch * p_.heads + place.kv_head * p_.group;
    return true;
  }

  __device__ __forceinline__ const TensorMap& q() const { return p_.q; }
  __device__ __forceinline__ const TensorMap& d_out() const { return p_.d_out; }
  __device__ __forceinline__ const TensorMap& k() const { return p_.k; }
  __device__ __forceinline__ const TensorMap& v() const { return p_.v; }
  __device__ __forceinline__ const TensorMap& d_k() const { return p_.d_k; }
  __device__ __forceinline__ const TensorMap& d_v() const { return p_.d_v; }

  __device__ __forceinline__ void wait_rows(const AttentionBackwardTask& task, int head) const {
    const std::uint64_t* const word = &p_.prepared[task.head + head];
    wait_backward_word(p_, word, (epoch() + 1) * static_cast<std::uint64_t>(p_.query_tiles),
                       task.head + head);
    // What was acquired was written by ordinary stores; the copy engine reads it next.
    ptx::fence_proxy_async_global();
  }
  __device__ __forceinline__ const AttentionBackwardRows* rows(const AttentionBackwardTask& task, int head,
                                                               int tile) const {
    return p_.rows + tile_at(task, head, tile);
  }

  __device__ __forceinline__ std::int32_t unit(const AttentionBackwardTask& task, int head, int tile,
                                               int unit) const {
    return tile_at(task, head, tile) * Config::kUnits + unit;
  }
  __device__ __forceinline__ float* sums(std::int32_t unit) const {
    return p_.sums + std::int64_t{unit} * Config::kUnitElements;
  }
  __device__ __forceinline__ bool is_first(const AttentionBackwardTask& task, int tile) const {
    return turn(task, tile) == 0;
  }
  __device__ __forceinline__ void wait_turn(const AttentionBackwardTask& task, int tile,
                                            std::int32_t unit) const {
    const std::uint64_t before = epoch() * static_cast<std::uint64_t>(p_.tasks.adds(tile)) +
                                 static_cast<std::uint64_t>(turn(task, tile));
    wait_backward_word(p_, &p_.added[unit], before, unit / Config::kUnits);
    // The adds of other CTAs, which were acquired, come before that of this one's copy engine.
    ptx::fence_proxy_async_global();
  }
  __device__ __forceinline__ void pass_turn(std::int32_t unit) const {
    ptx::red_add_release_gpu(&p_.added[unit], 1ULL);
  }

  __device__ __forceinline__ void finish() const {
    const std::int32_t units = p_.all_heads * p_.query_tiles;
    for (;;) {
      const std::uint64_t unit = claim_unit(&p_.counters->next_tile[epoch() & 1]);
      if (unit >= static_cast<std::uint64_t>(units)) return;
      narrow_backward_sums<Config>(p_, epoch(), static_cast<std::int32_t>(unit));
    }
  }

  __device__ __forceinline__ float scale() const { return p_.scale; }
  __device__ __forceinline__ float scale_log2() const { return p_.scale_log2; }
  __device__ __forceinline__ const DeviceTrace& trace() const { return p_.endpoint.trace; }

 private:
  /// Read again each time: registers are few, and it changes only when every CTA has ended.
  __device__ __forceinline__ std::uint64_t epoch() const { return p_.endpoint.control->epoch; }
  __device__ __forceinline__ std::int32_t tile_at(const AttentionBackwardTask& task, int head,
                                                  int tile) const {
    return (task.head + head) * p_.query_tiles + tile;
  }
  __device__ __forceinline__ std::int32_t turn(const AttentionBackwardTask& task, int tile) const {
    return p_.tasks.turn({0, 0, task.key / Config::kTileKeys, task.downwards}, tile);
  }

  const AttentionBackwardParameters& p_;
};

/// All CTAs prepare rows, take tasks until there are none, and narrow what has been summed.
template <class Config>
__device__ __forceinline__ void attention_backward_cta(const AttentionBackwardParameters& p,
                                                       std::byte* memory) {
  constexpr int kWarps = Config::kThreads / 32;
  compute_alone<kWarps>(p.endpoint, [&](const LaunchBegin& begin) {
    if (blockIdx.x == 0 && threadIdx.x == 0)
      p.counters->next_task[(begin.epoch + 1) & 1] = p.counters->next_tile[(begin.epoch + 1) & 1] = 0;
    const std::int32_t units = p.all_heads * p.query_tiles;
    const auto warp = static_cast<std::int32_t>(blockIdx.x * kWarps + threadIdx.x / 32);
    for (std::int32_t unit = warp; unit < units; unit += static_cast<std::int32_t>(gridDim.x) * kWarps)
      prepare_backward_rows<Config>(p, unit);
    attention_backward_body(AttentionBackwardFeed<Config>(p),
                            *reinterpret_cast<AttentionBackwardShared<Config>*>(memory));
  });
}

template <class Config>
__global__ __launch_bounds__(Config::kThreads, 1) void attention_backward_kernel(
    const __grid_constant__ AttentionBackwardParameters p) {
  extern __shared__ __align__(1024) std::byte memory[];
  attention_backward_cta<Config>(p, memory);
}

}  // namespace mkernel::kernels
