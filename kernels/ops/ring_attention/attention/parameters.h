// What the kernel of attention of a rank alone is given.
#pragma once

#include <cstdint>

#include "kernels/base/divisor.h"
#include "kernels/base/types.h"
#include "kernels/cuda/memory/tensor_map.h"
#include "kernels/plan/attention_tasks.h"
#include "mkernel/device_endpoint.h"

namespace mkernel::kernels {

struct AttentionPlan;

/// Memory of this rank alone.
struct AttentionCounters {
  /// The next task, by parity of the epoch: a launch uses one, and zeroes the other for the next launch.
  std::uint64_t next_task[2] = {};
};

struct AttentionParameters {
  TensorMap q;  ///< [batch * queries, heads * head_dim]; the first row of a sequence is the third coordinate
  TensorMap k;  ///< [batch * keys, kv_heads * head_dim], likewise
  TensorMap v;  ///< as k
  TensorMap out;  ///< as q
  device::Endpoint endpoint;
  AttentionTasks tasks;
  AttentionCounters* counters;
  float* lse;   ///< [batch, heads, queries], or null
  float scale;  ///< of the scores, times log2(e)
  std::int32_t heads, queries, keys;
  bool causal;
  Divisor group;  ///< heads of queries that share keys and values
};

/// Rows `rows` of every sequence of a tensor [batch, positions, heads, head_dim], one box per load or store
/// of a kernel. The first of them is the third coordinate. Rows behind the last one are outside, though
/// memory may have others there.
MatrixView attention_rows_view(const AttentionShape& shape, const void* base, std::int64_t heads,
                               std::int64_t positions, Range rows, std::int32_t box_rows);
/// Of the scores, times log2(e), so that powers of two do.
float attention_scale_log2(const AttentionShape& shape);

/// All that is the same in every launch.
AttentionParameters attention_parameters(const AttentionPlan& plan, AttentionCounters* counters);

/// What the maps are of, one box per load or store of the kernel. Keys and values have the same view.
MatrixView attention_q_view(const AttentionPlan& plan, const void* q);
MatrixView attention_kv_view(const AttentionPlan& plan, const void* kv);
MatrixView attention_out_view(const AttentionPlan& plan, const void* out);

}  // namespace mkernel::kernels
