// What the kernel of attention of sequences of different lengths is given.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/divisor.h"
#include "kernels/base/types.h"
#include "kernels/cuda/memory/tensor_map.h"
#include "kernels/plan/attention_sequences.h"
#include "mkernel/device_endpoint.h"

namespace mkernel::kernels {

struct AttentionPlan;

/// Why a launch was refused; the host reads it once the stream is done.
struct VarlenRefusal {
  std::uint64_t launch = 0;  ///< the last one that was refused, counted from 1; 0: none was
  BadLength why;
};

/// Memory of this rank alone. The slots of CTA 0, then those of CTA 1, ... lie behind it.
template <class Slot>
struct VarlenScratch {
  /// The next task, by parity of the epoch: a launch uses one, and zeroes the other for the next launch.
  std::uint64_t next_task[2] = {};
  VarlenRefusal refusal;

  MK_HOST_DEVICE Slot* slots(std::int32_t cta, std::int32_t sequences) {
    return reinterpret_cast<Slot*>(this + 1) + std::int64_t{cta} * (sequences + 1);
  }
  static std::size_t bytes(std::int32_t ctas, std::int32_t sequences) {
    return sizeof(VarlenScratch) +
           sizeof(Slot) * static_cast<std::size_t>(ctas) * (static_cast<std::size_t>(sequences) + 1);
  }
};

/// The maps are as high as a tile, so that a tile can end with its sequence: one of n rows begins in row
/// height - n of its map, and the map ends where it does. The third coordinate is the row behind the tile's
/// last one, in the tensor.
struct VarlenParameters {
  TensorMap q;    ///< [rows, heads * head_dim]
  TensorMap k;    ///< [rows, kv_heads * head_dim]
  TensorMap v;    ///< as k
  TensorMap out;  ///< as q
  device::Endpoint endpoint;
  AttentionLengths lengths;
  AttentionWindow window;
  VarlenScratch<AttentionSlot>* scratch;
  float* lse;   ///< or null
  float scale;  ///< of the scores, times log2(e)
  std::int32_t heads;
  Divisor group;              ///< heads of queries that share keys and values
  std::int64_t lse_sequence;  ///< in lse, from a sequence's row of q to where its heads begin: a factor
};

/// All that is the same in every launch.
VarlenParameters varlen_parameters(const AttentionPlan& plan, VarlenScratch<AttentionSlot>* scratch);

/// Rows of all sequences of a tensor [rows, heads, head_dim], one tile of `height` rows after the other: such
/// a map as the above.
MatrixView varlen_tile_view(const AttentionShape& shape, const void* tensor, std::int64_t heads,
                            std::int64_t rows, std::int32_t height, std::int32_t box_rows);
/// What the maps are of, one box per load or store of the kernel. Keys and values have the same view.
MatrixView varlen_q_view(const AttentionPlan& plan, const void* q);
MatrixView varlen_kv_view(const AttentionPlan& plan, const void* kv);
MatrixView varlen_out_view(const AttentionPlan& plan, const void* out);

}  // namespace mkernel::kernels
