// What attention has in common on one rank and on many: which shapes there are, and how they are called.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/plan/attention_sequences.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

/// kInvalidArgument naming field, value and limit. `kind` begins the error.
Status check_attention_shape(OpKind kind, const AttentionShape& shape);
/// Likewise, of operations that have no windows.
Status check_attention_without_window(OpKind kind, const AttentionShape& shape);
/// Likewise, of an operation that has neither packed sequences nor windows.
Status check_plain_attention_shape(OpKind kind, const AttentionShape& shape);
/// Likewise, of ring attention and its backward pass, which has no packed sequences: queries and keys are of
/// the same sequence, too.
Status check_ring_attention_shape(OpKind kind, const AttentionShape& shape);
/// Likewise, for what kernels count in 32 bits.
Status check_attention_counts(OpKind kind, const AttentionShape& shape);
/// Likewise, for what the body of the cuda executor does not have.
Status check_attention_on_gpu(OpKind kind, const AttentionShape& shape);
/// Likewise, of a shape with a window: for what its kernel lists.
Status check_attention_window_on_gpu(OpKind kind, const AttentionShape& shape);
/// Likewise, for the operands of a launch with `queries` and `keys` positions on this rank.
Status check_attention_operands(OpKind kind, const AttentionArguments& arguments, std::int64_t queries,
                                std::int64_t keys);

/// Likewise, for lengths of a launch that are missing, or given where none are wanted.
Status check_attention_lengths(OpKind kind, const AttentionShape& shape, const std::int32_t* cu_seqlens_q,
                               const std::int32_t* cu_seqlens_k);
/// Of a launch: null where the shape has no packed sequences.
AttentionLengths attention_lengths(const AttentionShape& shape, const std::int32_t* cu_seqlens_q,
                                   const std::int32_t* cu_seqlens_k);
/// Of lengths in memory of the host.
BadLength first_bad_attention_length(const AttentionLengths& lengths);
/// OK without a bad length; else kInvalidArgument.
Status refuse_attention_length(OpKind kind, const AttentionShape& shape, const BadLength& bad);
/// The index in lse of the first query of a sequence and head: [heads, rows] when the sequences are packed,
/// else [batch, heads, positions].
inline std::int64_t attention_lse_at(const AttentionShape& shape, const AttentionSequence& sequence,
                                     std::int64_t head) {
  return sequence.query_first * (shape.max_sequences > 0 ? 1 : shape.heads) + head * shape.sequence;
}

/// Queries do not see all keys that the causal mask, if there is one, leaves them.
inline bool has_attention_window(const AttentionShape& shape) {
  return shape.window_left >= 0 || (!shape.causal && shape.window_right >= 0);
}
/// What queries see; a causal mask ends it at the right.
AttentionWindow attention_window(const AttentionShape& shape);
/// Of the scores; a shape's 0 stands for 1 / sqrt(head_dim).
double attention_scale(const AttentionShape& shape);

/// "ring_attention batch=1 sequence=4096 heads=32 kv_heads=4 head_dim=128 scale=0.088388 causal bf16", with
/// keys=... behind the sequence where it has another length, max_sequences=... and window=left,right where it
/// has these.
std::string attention_signature(OpKind kind, const AttentionShape& shape);

}  // namespace mkernel::kernels
