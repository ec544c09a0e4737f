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
  TensorMap own[KvGatherPlan::kTensors];  ///< own keys and values again, in tiles of keys
  const TensorMap* gathered;              ///< slabs, as RingAttentionParameters has them
  RingBackwardTasks tasks;
  KeyPartialsPlan partials;
  std::int32_t comm_ctas;
  std::int8_t local_of[kMaxKernelRanks];      ///< by rank
  std::byte* d_rows[KvGatherPlan::kTensors];  ///< gradients of own keys and values
};

/// All that is the same in every launch and known without workspaces and topology. `memory`:
/// ring_backward_scratch() of it, zeroed once.
RingBackwardParameters ring_backward_parameters(const RingBackwardPlan& plan, void* memory);
AttentionBackwardScratch ring_backward_scratch(const RingBackwardPlan& plan);
/// As describe_ranks(), and where the owners of keys are.
void describe_owners(const Topology& topology, std::uint32_t rank, RingBackwardParameters& p);

/// What the maps are of; d_out as q. `part`: of the own positions, not an empty one.
MatrixView ring_backward_q_view(const RingBackwardPlan& plan, int part, const void* q);
/// Own keys or values, in tiles. The rank holds some.
MatrixView ring_backward_kv_view(const RingBackwardPlan& plan, const void* kv);
/// Those of `source`, which holds some, in its slab.
MatrixView ring_backward_slab_view(const RingBackwardPlan& plan, std::int32_t source, const void* slab);

}  // namespace mkernel::kernels
