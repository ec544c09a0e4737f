// What the kernel of the backward pass of ring attention is given.
#pragma once

#include <cstdint>

#include "kernels/cuda/memory/tensor_map.h"
#include "kernels/ops/ring_attention/backward_queries.h"
#include "kernels/ops/ring_attention/ring_parameters.h"
#include "kernels/plan/key_partials_plan.h"
#include "kernels/plan/ring_backward_tasks.h"

namespace mkernel::kernels {

struct RingBackwardPlan;

struct RingBackwardParameters : AttentionBackwardQueries, KvGatherParameters {
  /// By part of the own positions, [batch * positions, heads * head_dim]; the first row of a sequence is the
  /// third coordinate, and rows count as if those of the second part began with a tile.
  TensorMap q[2], d_out[2];
  TensorMap own[KvGatherPlan::kTensors];  ///< own keys and values, [batch * positions, kv_heads * head_dim]
  const TensorMap* gathered;  ///< [half][source][tensor], in device memory: [kv heads * positions, head_dim]
  RingBackwardTasks tasks;
  KeyPartialsPlan partials;
  std::byte* d_rows[KvGatherPlan::kTensors];  ///< gradients of own keys and values, as `rows`
};

/// All that is the same in every launch and known without workspaces and topology. `memory`:
/// ring_backward_scratch() of it, zeroed once.
RingBackwardParameters ring_backward_parameters(const RingBackwardPlan& plan, void* memory);
AttentionBackwardScratch ring_backward_scratch(const RingBackwardPlan& plan);

/// What the maps are of; d_out as q. `part`: of the own positions, not an empty one.
MatrixView ring_backward_q_view(const RingBackwardPlan& plan, int part, const void* q);
/// Own keys or values, of which there are some.
MatrixView ring_backward_kv_view(const RingBackwardPlan& plan, const void* kv);
/// Those of `source`, which holds some, in its slab.
MatrixView ring_backward_slab_view(const RingBackwardPlan& plan, std::int32_t source, const void* slab);

}  // namespace mkernel::kernels
