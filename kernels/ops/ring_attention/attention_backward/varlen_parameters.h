// What the kernel of the backward pass of attention of sequences of different lengths is given.
#pragma once

#include <cstdint>

#include "kernels/ops/ring_attention/attention/varlen_parameters.h"
#include "kernels/ops/ring_attention/attention_backward/parameters.h"
#include "kernels/ops/ring_attention/attention_backward/queries.h"
#include "kernels/plan/attention_backward_sequences.h"

namespace mkernel::kernels {

struct AttentionBackwardPlan;

/// The maps are as high as a tile, as those of VarlenParameters.
struct VarlenBackwardParameters : AloneBackwardParameters {
  AttentionLengths lengths;
  VarlenScratch<AttentionBackwardSlot>* scratch;
  void* d_rows[2];  ///< what the maps d_k and d_v are of
  std::int32_t kv_heads;
  AttentionWindow window;  ///< as that of AttentionBackwardTaskList

  /// Of a tile by its number over all sequences (plan/attention_backward_sequences.h).
  MK_HOST_DEVICE Rows rows_of_tile(std::int32_t tile) const {
    const AttentionQueryTile of = attention_query_tile(lengths, false, tile);
    return {of.begin, of.end};
  }
  /// With a window, of sequences that are packed or not.
  MK_HOST_DEVICE Rows rows_of_window_tile(std::int32_t tile) const {
    const AttentionQueryTile of = attention_query_tile(lengths, false, tile, window);
    return {of.begin, of.end};
  }
  /// Likewise, the index in lse of a row of q.
  MK_HOST_DEVICE std::int64_t lse_at(std::int32_t head, std::int32_t row) const {
    const std::int32_t inside = lengths.q == nullptr ? row % lengths.all_queries : row;
    return std::int64_t{row - inside} * heads + std::int64_t{head} * lengths.all_queries + inside;
  }
};

/// Bytes that varlen_backward_parameters() wants for the queries.
std::int64_t varlen_backward_bytes(const AttentionBackwardPlan& plan);
/// All that is the same in every launch. `memory`: varlen_backward_bytes(); both are zeroed once.
VarlenBackwardParameters varlen_backward_parameters(const AttentionBackwardPlan& plan, void* memory,
                                                    VarlenScratch<AttentionBackwardSlot>* scratch);

/// What the maps are of, one box per load or store of the kernel: d_out as q, v as k, d_v as d_k.
MatrixView varlen_backward_q_view(const AttentionBackwardPlan& plan, const void* q);
MatrixView varlen_backward_k_view(const AttentionBackwardPlan& plan, const void* k);
MatrixView varlen_backward_d_k_view(const AttentionBackwardPlan& plan, const void* d_k);

}  // namespace mkernel::kernels
