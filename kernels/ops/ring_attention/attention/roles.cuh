// The kernel of attention of a rank alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention/sm90_attention.cuh"
#include "kernels/cuda/launch/first_cta.cuh"
#include "kernels/cuda/launch/rehearsal.cuh"
#include "kernels/cuda/ptx/global.cuh"
#include "kernels/ops/ring_attention/attention/parameters.h"

namespace mkernel::kernels {

/// The feed: CTAs take the tasks of the plan in order, each the next one as soon as it has time.
template <class Config>
class AttentionFeed {
 public:
  __device__ __forceinline__ AttentionFeed(const AttentionParameters& p, std::uint64_t epoch)
      : p_(p), epoch_(epoch) {}

  __device__ __forceinline__ bool next(AttentionTask& task) const {
    const std::uint64_t claimed = ptx::atom_add_relaxed_gpu(&p_.counters->next_task[epoch_ & 1], 1);
    if (claimed >= static_cast<std::uint64_t>(p_.tasks.tasks())) return false;
    const AttentionTasks::Place place = p_.tasks.place(static_cast<std::int32_t>(claimed));
    const std::int32_t query = place.tile * Config::kTileQueries;
    const std::int32_t end = min(query + Config::kTileQueries, p_.queries);
    task.first.keys = attention_visible_keys(end, p_.queries, p_.keys, p_.causal);
    task.first.visible = p_.causal ? query + 1 + p_.keys - p_.queries : p_.keys;
    task.key_tiles = task.first.tiles(Config::kTileKeys);
    task.query = query;
    task.queries = p_.queries;
    task.query_first = place.batch * p_.queries;
    task.batch = place.batch;
    task.query_column = place.head * Config::kHeadDim;
    task.key_column = place.head / p_.group * Config::kHeadDim;
    task.lse = (std::int64_t{place.batch} * p_.heads + place.head) * p_.queries + query;
    return true;
  }

  __device__ __forceinline__ const TensorMap& q(const AttentionTask&) const { return p_.q; }
  __device__ __forceinline__ const TensorMap& out(const AttentionTask&) const { return p_.out; }
  __device__ __forceinline__ constexpr int segments() const { return 1; }
  __device__ __forceinline__ AttentionSegment segment(const AttentionTask& task, int) const {
    return task.first;
  }
  template <AttentionOperand kOperand>
  __device__ __forceinline__ AttentionRows rows(const AttentionTask& task, int, int) const {
    return {kOperand == AttentionOperand::kKeys ? &p_.k : &p_.v, task.key_column, task.batch * p_.keys};
  }
  __device__ __forceinline__ float scale() const { return p_.scale; }
  __device__ __forceinline__ float* lse() const { return p_.lse; }
  __device__ __forceinline__ const DeviceTrace& trace() const { return p_.endpoint.trace; }

 private:
  const AttentionParameters& p_;
  const std::uint64_t epoch_;
};

/// All CTAs take tasks until there are none.
template <class Config>
__device__ __forceinline__ void attention_cta(const AttentionParameters& p, std::byte* memory) {
  auto& shared = *reinterpret_cast<AloneShared<AttentionShared<Config>>*>(memory);
  compute_alone<Config::kThreads / 32>(p.endpoint, shared.begin, [&](const LaunchBegin& begin) {
    if (blockIdx.x == 0 && threadIdx.x == 0) p.counters->next_task[(begin.epoch + 1) & 1] = 0;
    attention_body(AttentionFeed<Config>(p, begin.epoch), shared.body);
  });
}

template <class Config>
__global__ __launch_bounds__(Config::kThreads,
                             1) void attention_kernel(const __grid_constant__ AttentionParameters p) {
  extern __shared__ __align__(1024) std::byte memory[];
  if (!is_rehearsal(p.endpoint)) attention_cta<Config>(p, memory);
}

}  // namespace mkernel::kernels
