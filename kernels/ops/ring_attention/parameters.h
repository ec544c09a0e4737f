// What the kernel of ring attention is given.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/divisor.h"
#include "kernels/cuda/memory/tensor_map.h"
#include "kernels/ops/ring_attention/attention/parameters.h"
#include "kernels/plan/attention_tasks.h"
#include "kernels/plan/kv_gather_plan.h"
#include "mkernel/device_endpoint.h"

namespace mkernel::kernels {

class Topology;
struct RingGpuPlan;

/// Of the gather, to whatever computes with it.
struct KvGatherParameters {
  /// Own keys and values, [batch * positions, kv_heads * head_dim], in packed boxes of a piece of a head; the
  /// first row of a batch entry is the third coordinate.
  TensorMap push[KvGatherPlan::kTensors];
  device::Endpoint endpoint;
  KvGatherPlan gather;
  std::byte* words[kMaxNodeRanks];  ///< own workspaces of this node, by local rank
  std::byte* lent[kMaxNodeRanks];   ///< lent ones, likewise
  std::uint64_t half_bytes;         ///< of those
  std::int32_t local_rank;
  std::uint32_t region;                ///< the lent workspace's, for puts
  std::int32_t rails;                  ///< other nodes
  std::int32_t rail[kMaxKernelNodes];  ///< rail peers, from the next node on
};

struct RingAttentionParameters : KvGatherParameters {
  /// By part of the own positions, [batch * positions, heads * head_dim]; the first row of the part is the
  /// third coordinate. What is stored of a part never reaches into the next one.
  TensorMap q[2], out[2];
  TensorMap own[KvGatherPlan::kTensors];  ///< own keys and values again, in tiles of keys
  /// Slabs, [half][source][tensor], in device memory: each [batch * kv_heads * positions, head_dim]; the
  /// first row of a head is the third coordinate.
  const TensorMap* gathered;
  AttentionTasks tasks;
  AttentionCounters* counters;
  float* lse;   ///< [batch, heads, positions], or null
  float scale;  ///< of the scores, times log2(e)
  std::int32_t heads;
  bool causal;
  Divisor group;  ///< heads of queries that share keys and values
  std::int32_t first_tiles;
  std::int32_t comm_ctas;
};

/// All that is the same in every launch and known without workspaces and topology.
RingAttentionParameters ring_attention_parameters(const RingGpuPlan& plan, AttentionCounters* counters);
/// Where `rank` is, and its rail peers.
void describe_ranks(const Topology& topology, std::uint32_t rank, KvGatherParameters& p);

/// What the maps are of. Of packed sequences they are as high as a tile (varlen_parameters.h), but for what
/// is pushed. `part`: of the own positions, not an empty one.
MatrixView ring_q_view(const RingGpuPlan& plan, int part, const void* q);
MatrixView ring_out_view(const RingGpuPlan& plan, int part, const void* out);
/// Own keys or values, in tiles of `tile_keys` and, packed, in the pieces that are pushed. The rank holds
/// some.
MatrixView ring_kv_view(const RingGpuPlan& plan, std::int32_t tile_keys, const void* kv);
MatrixView ring_push_view(const RingGpuPlan& plan, const void* kv);
/// Keys or values of `source`, in its slab in that half of the lent workspace. Of a source that holds nothing
/// it has no rows, and kernels keep clear of it.
MatrixView ring_slab_view(const RingGpuPlan& plan, std::int32_t tile_keys, const std::byte* half,
                          std::int32_t source, std::int32_t tensor);

}  // namespace mkernel::kernels
