// What the kernel of the backward pass of attention of a rank alone is given.
#pragma once

#include <cstdint>

#include "kernels/base/divisor.h"
#include "kernels/cuda/attention/sm90_backward_rows.h"
#include "kernels/cuda/memory/tensor_map.h"
#include "kernels/plan/attention_backward_tasks.h"
#include "mkernel/device_endpoint.h"

namespace mkernel::kernels {

struct AttentionBackwardPlan;

/// Memory of this rank alone, by parity of the epoch: a launch uses one, and zeroes the other for the next
/// launch.
struct AttentionBackwardCounters {
  std::uint64_t next_task[2] = {};
  std::uint64_t next_tile[2] = {};  ///< of the queries whose gradients are narrowed
};

/// Where what a launch keeps in global memory lies behind the counters. Heads are those of all sequences.
struct AttentionBackwardScratch {
  std::int64_t prepared, added, rows, sums;  ///< offsets of the arrays below
  std::int64_t bytes;                        ///< of all
};
AttentionBackwardScratch attention_backward_scratch(const AttentionBackwardPlan& plan);

struct AttentionBackwardParameters {
  TensorMap q;  ///< [batch * queries, heads * head_dim]; the first row of a sequence is the third coordinate
  TensorMap d_out;  ///< as q
  TensorMap k;      ///< [batch * keys, kv_heads * head_dim], likewise
  TensorMap v;      ///< as k
  TensorMap d_k;    ///< as k
  TensorMap d_v;    ///< as k
  device::Endpoint endpoint;
  AttentionBackwardTasks tasks;
  AttentionBackwardCounters* counters;
  std::uint64_t* prepared;      ///< [heads]: tiles whose rows are known; over all launches
  std::uint64_t* added;         ///< [heads][tiles of queries][units]: adds; over all launches
  AttentionBackwardRows* rows;  ///< [heads][tiles of queries]
  float* sums;                  ///< [heads][tiles of queries][units], in the order of registers
  const void* out;              ///< as q
  const void* d_out_rows;       ///< what the map is of
  const float* lse;             ///< [batch, heads, queries]
  void* d_q;                    ///< as q
  float scale;                  ///< of the scores
  float scale_log2;             ///< times log2(e)
  std::int32_t queries, keys;
  std::int32_t all_heads;  ///< of the queries of all sequences
  std::int32_t row_bytes;  ///< of all heads of a position
  Divisor heads;           ///< of the queries
  Divisor query_tiles;     ///< of a head
  std::int32_t group;      ///< heads of queries that share keys and values
};

/// All that is the same in every launch. `memory`: attention_backward_scratch() of it, zeroed once.
AttentionBackwardParameters attention_backward_parameters(const AttentionBackwardPlan& plan, void* memory);

/// What the maps are of, one box per load or store of the kernel: d_out as q, v as k, d_v as d_k.
MatrixView attention_backward_q_view(const AttentionBackwardPlan& plan, const void* q);
MatrixView attention_backward_k_view(const AttentionBackwardPlan& plan, const void* k);
MatrixView attention_backward_d_k_view(const AttentionBackwardPlan& plan, const void* d_k);

}  // namespace mkernel::kernels
