// The maps of keys and values on the cuda executor, own and gathered ones: the same of every kernel that
// gathers them (gather.cuh).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/base/lent_workspace.h"
#include "kernels/base/views.h"
#include "kernels/cuda/memory/buffer.h"
#include "kernels/ops/ring_attention/cuda_operands.h"
#include "kernels/ops/ring_attention/gpu_plan.h"
#include "kernels/ops/ring_attention/parameters.h"
#include "kernels/plan/topology.h"

namespace mkernel::kernels {

/// Of one operation. What it writes are the members of parameters that derive from KvGatherParameters and
/// have `own` and `gathered`, as RingAttentionParameters has them.
class KvGatherMaps {
 public:
  /// `kind` begins the errors. The plan outlives this. `tile_keys`: of a tile of keys of the kernel.
  KvGatherMaps(OpKind kind, const RingGpuPlan& plan, std::int32_t tile_keys)
      : kind_(kind), plan_(plan), tile_keys_(tile_keys) {}

  /// When the workspaces are there: where they and the ranks are, and the maps of all slabs, which this owns.
  template <class Parameters>
  Status attach(const Topology& topology, std::uint32_t rank, const SymmetricView& words,
                const SymmetricView& lent, Parameters& p) {
    p.half_bytes = lent_half_bytes(lent.bytes);
    std::vector<TensorMap> maps;
    for (const std::uint64_t launch : {0, 1}) {
      const std::byte* half = lent.mine + lent_half_at(launch, p.half_bytes);
      for (std::int32_t slab = 0; slab < KvGatherPlan::kTensors * plan_.gather.world; ++slab) {
        const MatrixView view = ring_slab_view(plan_, tile_keys_, half, slab / KvGatherPlan::kTensors,
                                               slab % KvGatherPlan::kTensors);
        maps.emplace_back() = {};
        if (view.rows > 0) MK_RETURN_IF_ERROR(encode_attention_map(kind_, view, "workspace", maps.back()));
      }
    }
    auto slabs = DeviceBuffer::holding(maps, "ring attention: tensor maps");
    if (!slabs.ok()) return slabs.status().with_context(name_of(kind_));
    slabs_ = std::move(*slabs);
    p.gathered = static_cast<const TensorMap*>(slabs_.get());
    p.region = lent.region;
    describe_ranks(topology, rank, p);
    std::copy(words.node.begin(), words.node.end(), p.words);
    std::copy(lent.node.begin(), lent.node.end(), p.lent);
    return {};
  }

  /// Own keys and values, in tiles and in the pieces that are pushed. The rank holds some.
  template <class Parameters>
  Status encode_own(const void* k, const void* v, Parameters& p) const {
    MK_RETURN_IF_ERROR(encode_own(k, "k", p.own[0], p.push[0]));
    return encode_own(v, "v", p.own[1], p.push[1]);
  }

 private:
  Status encode_own(const void* kv, const char* name, TensorMap& own, TensorMap& push) const {
    MK_RETURN_IF_ERROR(encode_attention_map(kind_, ring_kv_view(plan_, tile_keys_, kv), name, own));
    return encode_packed_attention_map(kind_, ring_push_view(plan_, kv), name, push);
  }

  const OpKind kind_;
  const RingGpuPlan& plan_;
  const std::int32_t tile_keys_;
  DeviceBuffer slabs_;  ///< TensorMap [half][source][tensor]
};

}  // namespace mkernel::kernels
