// What the feeds of the backward pass of a rank alone have in common.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention/sm90_backward_config.cuh"
#include "kernels/cuda/memory/tensor_map.h"
#include "kernels/cuda/ptx/tma.cuh"
#include "kernels/ops/ring_attention/attention_backward/parameters.h"
#include "kernels/ops/ring_attention/attention_backward/queries.cuh"

namespace mkernel::kernels {

/// One map of every tensor; gradients of keys and values go where the caller wants them.
template <class Config>
class AloneBackwardFeed : public AttentionBackwardQueryFeed<Config> {
 public:
  __device__ __forceinline__ const TensorMap& q(int) const { return p_.q; }
  __device__ __forceinline__ const TensorMap& d_out(int) const { return p_.d_out; }
  __device__ __forceinline__ const TensorMap& k(const AttentionBackwardTask&) const { return p_.k; }
  __device__ __forceinline__ const TensorMap& v(const AttentionBackwardTask&) const { return p_.v; }

  __device__ __forceinline__ std::nullptr_t store_keys(const AttentionBackwardTask& task, int offset,
                                                       std::uint32_t d_keys, std::uint32_t d_values) const {
#pragma unroll
    for (int box = 0; box < Config::kBoxes; ++box) {
      const int at = box * Config::kKeyBoxBytes, column = task.key_column + box * 64;
      ptx::tma_store_3d(&p_.d_k, column, task.key + offset, task.key_first, d_keys + at);
      ptx::tma_store_3d(&p_.d_v, column, task.key + offset, task.key_first, d_values + at);
    }
    return nullptr;
  }
  /// Nobody waits for them.
  __device__ __forceinline__ void announce(std::nullptr_t) const {}

 protected:
  explicit __device__ __forceinline__ AloneBackwardFeed(const AloneBackwardParameters& p)
      : AttentionBackwardQueryFeed<Config>(p.endpoint, p), p_(p) {}

 private:
  const AloneBackwardParameters& p_;
};

}  // namespace mkernel::kernels
