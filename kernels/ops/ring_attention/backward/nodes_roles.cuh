// The backward pass of ring attention over several nodes on the cuda executor: what its CTAs do that those of
// one node do not. See README.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/launch/rehearsal.cuh"
#include "kernels/cuda/ptx/global.cuh"
#include "kernels/ops/ring_attention/backward/node_key_sums.cuh"
#include "kernels/ops/ring_attention/backward/roles.cuh"

namespace mkernel::kernels {

/// compute: the feed.
template <class Config>
class RingBackwardNodesFeed : public RingBackwardFeed<Config> {
 public:
  using Parameters = RingBackwardNodesParameters;

  explicit __device__ __forceinline__ RingBackwardNodesFeed(const Parameters& p)
      : RingBackwardFeed<Config>(p), p_(p) {}

  static __device__ __forceinline__ void zero_counters(const Parameters& p, std::uint64_t parity) {
    RingBackwardFeed<Config>::zero_counters(p, parity);
    p.next_put[parity] = 0;
  }

  __device__ __forceinline__ bool next(AttentionBackwardTask& task) const {
    return this->claim(
        task, [this](std::int32_t number) { return p_.tasks.place(p_.gather, number, p_.far_tiles); });
  }

  /// Into the slot at the owner or, on this node, its rail peer.
  __device__ __forceinline__ std::uint64_t* store_keys(const AttentionBackwardTask& task, int offset,
                                                       std::uint32_t d_keys, std::uint32_t d_values) const {
    return this->store_into(task, offset, d_keys, d_values, p_.slot_of[task.source]);
  }

  /// What other nodes wait for first, and what comes from there last.
  __device__ __forceinline__ void finish() const {
    sum_put_keys<Config>(p_);
    this->finish_pieces([this](std::int32_t piece) { sum_own_keys<Config>(p_, piece); });
  }

 private:
  const Parameters& p_;
};

/// inter_reduce, and the sender of its sums. Both begin when all keys and values have come: until then these
/// have the wire for themselves, and whose do not come is said by those who wait for them.
template <class Config>
struct SumsAfterGather {
  const RingBackwardNodesParameters& p;

  __device__ __forceinline__ void work() const {
    if (static_cast<std::int32_t>(blockIdx.x) >= p.sum_ctas) return;
    wait_all_kv(p, p.endpoint.control->epoch);
    sum_put_keys<Config>(p);
  }
  __device__ __forceinline__ void send() const { put_key_sums(p, p.endpoint.control->epoch); }
};

/// The whole kernel, with the CTA's shared memory. CTA 0 adds up, sends and polls for as long as the launch
/// takes; the other CTAs that add up compute when they have pushed and nothing is left to add up.
template <class Config>
__device__ __forceinline__ void ring_backward_nodes_cta(const RingBackwardNodesParameters& p,
                                                        std::byte* shared) {
  ring_backward_cta<Config, RingBackwardNodesFeed<Config>>(p, shared, SumsAfterGather<Config>{p});
}

template <class Config>
__global__ __launch_bounds__(Config::kThreads, 1) void ring_backward_nodes_kernel(
    const __grid_constant__ RingBackwardNodesParameters p) {
  extern __shared__ __align__(1024) std::byte memory[];
  if (!is_rehearsal(p.endpoint)) ring_backward_nodes_cta<Config>(p, memory);
}

}  // namespace mkernel::kernels
