// The cuda executor's operations against what else one could use, in one run: graph-captured launches, new
// inputs and a verified output in every timed iteration.
#pragma once

#include <mkernel/client.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tools/mkbench/row.h"

namespace mkernel::bench {

class Nccl;

struct OpCudaOptions {
  int device = 0;  ///< of the group's session
  int iterations = 3;
  int share = 0;         ///< ranks that run on this GPU at the same time; 0: this one has the GPU to itself
  bool gemm = false;     ///< measure the product alone too: cuBLAS
  bool product = false;  ///< and the GEMM body of the operations
  const Nccl* nccl = nullptr;  ///< measure cuBLAS and NCCL too
  ExecutorOptions executor;
  GemmPlanOptions plan;
  std::string trace;  ///< file for the timeline of one more launch; empty: none
};

/// **Collective.** Rounds of launches of ours, of the product alone and of cuBLAS with NCCL, in turns, so
/// that all of them see the same clocks; before every round the inputs are made anew, after it the outputs of
/// ours are verified. An iteration's time is that of its slowest rank. NCCL's collectives want equal blocks:
/// where the rows do not divide, that side is left out.
///
/// A rank that shares its GPU with others uses its share of the multiprocessors: `plan.sms`, or where that is
/// 0 the part that share_of_gpu() gives. All ranks measure the same thing at the same time, the products
/// alone too. So a product has the same share of memory, cache and power as the operation that it is compared
/// with.
Result<Row> measure_op_cuda(Group& group, OpKind kind, const GemmShape& shape, const OpCudaOptions& options);
/// The same of the mixture of experts: new tokens and routing in every iteration, the same weights; nothing
/// is measured beside it.
Result<Row> measure_moe_cuda(Group& group, const MoeShape& shape, const OpCudaOptions& options);
/// The same of attention of each rank alone (kAttention), or of ring attention, with the TFLOP/s of a rank in
/// the row.
Result<Row> measure_attention_cuda(Group& group, OpKind kind, const AttentionShape& shape,
                                   const OpCudaOptions& options);
/// The same of the backward pass of attention of each rank alone (kAttentionBackward), or of ring attention,
/// of inputs from which attention of a rank alone makes outputs and log-sum-exps before every round.
Result<Row> measure_backward_cuda(Group& group, OpKind kind, const AttentionShape& shape,
                                  const OpCudaOptions& options);
/// The same with sequences of different lengths, of attention of each rank alone (kAttention), of its
/// backward pass (kAttentionBackward) or of ring attention (kRingAttention): `lengths` is cu_seqlens of
/// queries and of keys on every rank, `shape` says how many rows a rank has.
Result<Row> measure_varlen_cuda(Group& group, OpKind kind, const AttentionShape& shape,
                                const std::vector<std::int32_t>& lengths, const OpCudaOptions& options);

/// Multiprocessors of each of `ranks` ranks on a GPU that has `sms`: all in equal parts, rounded down to a
/// multiple of 8, or of 2 where that would leave none. The rest is for kernels that fill and check.
constexpr int share_of_gpu(int sms, int ranks) {
  const int part = sms / ranks;
  return part >= 8 ? part / 8 * 8 : part / 2 * 2;
}
static_assert(share_of_gpu(132, 2) == 64 && share_of_gpu(132, 4) == 32 && share_of_gpu(132, 8) == 16);

}  // namespace mkernel::bench
