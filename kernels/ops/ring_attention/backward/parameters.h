// What the kernel of the backward pass of ring attention is given.
#pragma once

#include <cstdint>

#include "kernels/cuda/memory/tensor_map.h"
#include "kernels/ops/ring_attention/attention_backward/queries.h"
#include "kernels/ops/ring_attention/parameters.h"
#include "kernels/plan/key_partials_plan.h"
#include "kernels/plan/put_key_partials_plan.h"
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
  std::uint8_t local_of[kMaxKernelRanks];     ///< by rank
  std::byte* d_rows[KvGatherPlan::kTensors];  ///< gradients of own keys and values
};

/// What the kernel for several nodes is given besides.
struct RingBackwardNodesParameters : RingBackwardParameters {
  std::int8_t slot_of[kMaxKernelRanks];      ///< KeyPartialsPlan's of this rank, by owner
  std::int8_t rank_of_local[kMaxNodeRanks];  ///< ranks of this node
  std::int32_t far_tiles;                    ///< RingBackwardTasks::far_tiles()
  std::int32_t sum_ctas;  ///< the first of the grid: add up what is put, when they have pushed
  PutKeyPartialsPlan puts;
  /// Units of a head that are put to the rail peer so many nodes behind this one, and that come from there,
  /// from distance 1 on; of the former those of all peers.
  Divisor put_units[kMaxKernelNodes], come_units[kMaxKernelNodes];
  Divisor all_put_units;
  std::int32_t chunks;      ///< chunks of the peer that gets most
  std::uint64_t* next_put;  ///< the next piece to add up, by parity of the epoch (AttentionBackwardCounters)
  std::uint64_t* staged;    ///< [distance - 1][chunk]: pieces that are staged; over all launches
};

/// All that is the same in every launch and known without workspaces and topology. `memory`:
/// ring_backward_scratch() of it, zeroed once. Over several nodes `wire` is ring_backward_wire_bytes() more,
/// likewise; on one node what only several need is left out.
RingBackwardNodesParameters ring_backward_parameters(const RingBackwardPlan& plan, void* memory, void* wire);
AttentionBackwardScratch ring_backward_scratch(const RingBackwardPlan& plan);
std::uint64_t ring_backward_wire_bytes(const RingBackwardPlan& plan);
/// Where the owners of keys and the writers of their gradients are.
void describe_owners(const Topology& topology, RingBackwardNodesParameters& p);

/// What the maps are of; d_out as q. `part`: of the own positions, not an empty one.
MatrixView ring_backward_q_view(const RingBackwardPlan& plan, int part, const void* q);

}  // namespace mkernel::kernels
