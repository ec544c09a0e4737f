// What the kernels of the backward pass of attention of a rank alone are given.
#pragma once

#include <cstdint>

#include "kernels/cuda/memory/tensor_map.h"
#include "kernels/ops/ring_attention/attention_backward/queries.h"
#include "kernels/plan/attention_backward_tasks.h"
#include "mkernel/device_endpoint.h"

namespace mkernel::kernels {

struct AttentionBackwardPlan;

/// What every kernel of the backward pass of a rank alone is given. The maps have a third coordinate.
struct AloneBackwardParameters : AttentionBackwardQueries {
  TensorMap q;      ///< [rows, heads * head_dim]
  TensorMap d_out;  ///< as q
  TensorMap k;      ///< [rows, kv_heads * head_dim]
  TensorMap v;      ///< as k
  TensorMap d_k;    ///< as k
  TensorMap d_v;    ///< as k
  device::Endpoint endpoint;
};

/// Of sequences of one length; the third coordinate of the maps is the first row of a sequence.
struct AttentionBackwardParameters : AloneBackwardParameters {
  AttentionBackwardTasks tasks;
  std::int32_t keys;
};

/// The queries of a rank alone are one part.
AttentionBackwardParts attention_backward_parts(const AttentionBackwardPlan& plan);
/// All that is the same in every launch. `memory`: attention_backward_scratch() of it, zeroed once.
AttentionBackwardParameters attention_backward_parameters(const AttentionBackwardPlan& plan, void* memory);

/// What the maps are of, one box per load or store of the kernel: d_out as q, v as k, d_v as d_k.
MatrixView attention_backward_q_view(const AttentionBackwardPlan& plan, const void* q);
MatrixView attention_backward_k_view(const AttentionBackwardPlan& plan, const void* k);
MatrixView attention_backward_d_k_view(const AttentionBackwardPlan& plan, const void* d_k);

}  // namespace mkernel::kernels
