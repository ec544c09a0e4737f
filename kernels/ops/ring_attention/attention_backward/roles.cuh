// The kernel of the backward pass of attention of a rank alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention/sm90_backward.cuh"
#include "kernels/cuda/launch/first_cta.cuh"
#include "kernels/cuda/launch/rehearsal.cuh"
#include "kernels/cuda/ptx/global.cuh"
#include "kernels/ops/ring_attention/attention_backward/alone_feed.cuh"
#include "kernels/ops/ring_attention/attention_backward/parameters.h"
#include "kernels/ops/ring_attention/attention_backward/queries.cuh"

namespace mkernel::kernels {

/// The feed: CTAs take the tasks of the plan in order, each the next one as soon as it has time.
template <class Config>
class AttentionBackwardFeed : public AloneBackwardFeed<Config> {
 public:
  explicit __device__ __forceinline__ AttentionBackwardFeed(const AttentionBackwardParameters& p)
      : AloneBackwardFeed<Config>(p), p_(p) {}

  __device__ __forceinline__ bool next(AttentionBackwardTask& task) const {
    const std::uint64_t claimed = ptx::atom_add_relaxed_gpu(&p_.counters->next_task[this->epoch() & 1], 1);
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

  __device__ __forceinline__ std::int32_t turn(const AttentionBackwardTask& task, int tile) const {
    return p_.tasks.turn({0, 0, task.key / Config::kTileKeys, task.downwards}, tile);
  }

  __device__ __forceinline__ void finish() const {
    const std::int32_t units = p_.all_heads * p_.query_tiles;
    for (;;) {
      const std::uint64_t claimed = this->claim_left();
      if (claimed >= static_cast<std::uint64_t>(units)) return;
      const auto unit = static_cast<std::int32_t>(claimed);
      narrow_backward_sums<Config>(p_.endpoint, p_, unit, p_.tasks.adds(unit % p_.query_tiles));
    }
  }

 private:
  const AttentionBackwardParameters& p_;
};

/// All CTAs prepare rows, take tasks until there are none, and narrow what has been summed.
template <class Config>
__device__ __forceinline__ void attention_backward_cta(const AttentionBackwardParameters& p,
                                                       std::byte* memory) {
  constexpr int kWarps = Config::kThreads / 32;
  auto& shared = *reinterpret_cast<AloneShared<AttentionBackwardShared<Config>>*>(memory);
  compute_alone<kWarps>(p.endpoint, shared.begin, [&](const LaunchBegin& begin) {
    if (blockIdx.x == 0 && threadIdx.x == 0)
      p.counters->next_task[(begin.epoch + 1) & 1] = p.counters->next_unit[(begin.epoch + 1) & 1] = 0;
    prepare_all_backward_rows<Config>(p, static_cast<std::int32_t>(blockIdx.x));
    attention_backward_body(AttentionBackwardFeed<Config>(p), shared.body);
  });
}

template <class Config>
__global__ __launch_bounds__(Config::kThreads, 1) void attention_backward_kernel(
    const __grid_constant__ AttentionBackwardParameters p) {
  extern __shared__ __align__(1024) std::byte memory[];
  if (!is_rehearsal(p.endpoint)) attention_backward_cta<Config>(p, memory);
}

}  // namespace mkernel::kernels
