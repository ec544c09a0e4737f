#include "kernels/ops/ring_attention/shape.h"

#include <cmath>
#include <cstdint>
#include <tuple>
#include <utility>

#include "kernels/plan/attention_sequences.h"
#include "kernels/plan/attention_tasks.h"
#include "kernels/plan/cuts.h"
#include "kernels/plan/gemm_shape.h"

namespace mkernel::kernels {
namespace {

constexpr std::int64_t kElementBytes = 2;
constexpr std::int64_t kMaxHeadDim = 4096;  // scratch of a tile stays small
constexpr std::int64_t kMaxExtent = std::int64_t{1} << 31;
constexpr double kMaxBlockBytes = 1e14;  // offsets in a slot of the work ring have 48 bits

Status refuse(OpKind kind, const std::string& field, const std::string& value, const std::string& limit) {
  return {StatusCode::kInvalidArgument,
          std::string(name_of(kind)) + ": " + field + " = " + value + ", but it must be " + limit};
}

/// " window=128,0" of a shape that has one.
std::string window_text(const AttentionShape& shape) {
  if (shape.window_left < 0 && shape.window_right < 0) return "";
  return " window=" + std::to_string(shape.window_left) + "," + std::to_string(shape.window_right);
}

}  // namespace

Status check_attention_shape(OpKind kind, const AttentionShape& shape) {
  for (const auto& [field, value, first, last] :
       {std::tuple{"batch", shape.batch, std::int64_t{1}, kMaxExtent},
        {"sequence", shape.sequence, 1, kMostRows},
        {"keys", shape.keys, 0, kMostRows},
        {"heads", shape.heads, 1, kMaxExtent},
        {"kv_heads", shape.kv_heads, 1, kMaxExtent},
        {"head_dim", shape.head_dim, 1, kMaxHeadDim},
        {"max_sequences", shape.max_sequences, 0, kMostSequences},
        {"window_left", shape.window_left, -1, kMaxExtent},
        {"window_right", shape.window_right, -1, kMaxExtent}}) {
    if (value >= first && value <= last) continue;
    return refuse(kind, field, std::to_string(value), std::to_string(first) + ".." + std::to_string(last));
  }
  if (shape.max_sequences > 0 && shape.batch != 1)
    return refuse(kind, "batch", std::to_string(shape.batch), "1 with max_sequences");
  if (shape.causal && shape.window_right > 0)
    return refuse(kind, "window_right", std::to_string(shape.window_right), "-1 or 0 with causal");
  if (shape.heads % shape.kv_heads != 0) {
    return refuse(kind, "heads", std::to_string(shape.heads),
                  "a multiple of kv_heads = " + std::to_string(shape.kv_heads));
  }
  if (!std::isfinite(shape.scale) || shape.scale < 0) {
    return refuse(kind, "scale", std::to_string(shape.scale),
                  "finite and not negative (0 = 1 / sqrt(head_dim))");
  }
  if (shape.dtype != DataType::kBf16 && shape.dtype != DataType::kF16)
    return refuse(kind, "dtype", std::to_string(static_cast<unsigned>(shape.dtype)), "bf16 or f16");
  const double query_bytes = double(kElementBytes) * double(shape.batch) * double(shape.sequence) *
                             double(shape.heads) * double(shape.head_dim);
  if (query_bytes > kMaxBlockBytes) {
    return refuse(kind, "batch * sequence * heads * head_dim", std::to_string(query_bytes) + " bytes",
                  "at most " + std::to_string(kMaxBlockBytes) + " bytes");
  }
  return {};
}

Status check_attention_without_window(OpKind kind, const AttentionShape& shape) {
  MK_RETURN_IF_ERROR(check_attention_shape(kind, shape));
  for (const auto& [field, value] :
       {std::pair{"window_left", shape.window_left}, {"window_right", shape.window_right}})
    if (value != -1) return refuse(kind, field, std::to_string(value), "-1");
  return {};
}

Status check_plain_attention_shape(OpKind kind, const AttentionShape& shape) {
  MK_RETURN_IF_ERROR(check_attention_without_window(kind, shape));
  if (shape.max_sequences == 0) return {};
  return refuse(kind, "max_sequences", std::to_string(shape.max_sequences), "0");
}

Status check_ring_attention_shape(OpKind kind, const AttentionShape& shape) {
  MK_RETURN_IF_ERROR(kind == OpKind::kRingAttention ? check_attention_without_window(kind, shape)
                                                    : check_plain_attention_shape(kind, shape));
  if (shape.keys == 0 || shape.keys == shape.sequence) return {};
  return refuse(kind, "keys", std::to_string(shape.keys),
                "0 or the sequence, " + std::to_string(shape.sequence));
}

Status check_attention_counts(OpKind kind, const AttentionShape& shape) {
  // Rows, columns and tasks, with room for a tile that ends behind the last row.
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  const std::int64_t keys = shape.keys > 0 ? shape.keys : shape.sequence;
  // Each of the sequences that are packed may end inside a tile.
  const std::int64_t tiles =
      ceil_div(shape.sequence, std::int64_t{kAttentionTileQueries}) + shape.max_sequences;
  for (const auto& [field, left, right] :
       {std::tuple{"batch * sequence", shape.batch, shape.sequence},
        {"batch * keys", shape.batch, keys},
        {"heads * head_dim", shape.heads, shape.head_dim},
        {"batch * heads", shape.batch, shape.heads},
        {"batch * heads * tiles of 128 queries", shape.batch * shape.heads, tiles}}) {
    if (left > kMost / right)
      return refuse(kind, field, std::to_string(left * right), "at most " + std::to_string(kMost));
  }
  return {};
}

Status check_attention_on_gpu(OpKind kind, const AttentionShape& shape) {
  if (shape.head_dim == 64 || shape.head_dim == 128) return {};
  return refuse(kind, "head_dim", std::to_string(shape.head_dim), "64 or 128 on the cuda executor");
}

Status check_attention_window_on_gpu(OpKind kind, const AttentionShape& shape) {
  if (shape.batch <= kMostSequences) return {};
  return refuse(kind, "batch", std::to_string(shape.batch),
                "at most " + std::to_string(kMostSequences) + " with a window");
}

Status check_attention_operands(OpKind kind, const AttentionArguments& arguments, std::int64_t queries,
                                std::int64_t keys) {
  for (const auto& [name, data, positions] :
       {std::tuple<const char*, const void*, std::int64_t>{"q", arguments.q, queries},
        {"k", arguments.k, keys},
        {"v", arguments.v, keys},
        {"out", arguments.out, queries}}) {
    if (data != nullptr || positions == 0) continue;
    return {StatusCode::kInvalidArgument, std::string(name_of(kind)) + ": " + name +
                                              " is null, but this rank holds " + std::to_string(positions) +
                                              " positions"};
  }
  return {};
}

Status check_attention_lengths(OpKind kind, const AttentionShape& shape, const std::int32_t* cu_seqlens_q,
                               const std::int32_t* cu_seqlens_k) {
  const std::string packed = "max_sequences = " + std::to_string(shape.max_sequences);
  for (const auto& [field, lengths] :
       {std::pair{"cu_seqlens_q", cu_seqlens_q}, {"cu_seqlens_k", cu_seqlens_k}}) {
    if ((lengths != nullptr) == (shape.max_sequences > 0)) continue;
    return {StatusCode::kInvalidArgument,
            std::string(name_of(kind)) + ": " + field +
                (lengths == nullptr ? " is null, but " : " must be null, because ") + packed};
  }
  return {};
}

AttentionLengths attention_lengths(const AttentionShape& shape, const std::int32_t* cu_seqlens_q,
                                   const std::int32_t* cu_seqlens_k) {
  return {cu_seqlens_q, cu_seqlens_k,
          static_cast<std::int32_t>(shape.max_sequences > 0 ? shape.max_sequences : shape.batch),
          static_cast<std::int32_t>(shape.sequence), static_cast<std::int32_t>(shape.keys)};
}

BadLength first_bad_attention_length(const AttentionLengths& lengths) {
  for (std::int32_t i = 0; i < attention_length_entries(lengths); ++i) {
    const BadLength bad = check_attention_length(lengths, i);
    if (bad.number >= 0) return bad;
  }
  return {};
}

Status refuse_attention_length(OpKind kind, const AttentionShape& shape, const BadLength& bad) {
  if (bad.number < 0) return {};
  const std::int64_t of_each = shape.max_sequences + 1;
  const char* field = bad.number < of_each ? "cu_seqlens_q[" : "cu_seqlens_k[";
  return refuse(kind, field + std::to_string(bad.number % of_each) + "]", std::to_string(bad.value),
                std::to_string(bad.least) + ".." + std::to_string(bad.most));
}

AttentionWindow attention_window(const AttentionShape& shape) {
  // More than all positions of queries and keys together hides nothing.
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  const auto limit = [](std::int64_t wanted) {
    return wanted < 0 || wanted > kMost ? AttentionWindow::kAll : static_cast<std::int32_t>(wanted);
  };
  return {limit(shape.window_left), shape.causal ? 0 : limit(shape.window_right)};
}

double attention_scale(const AttentionShape& shape) {
  return shape.scale > 0 ? shape.scale : 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
}

std::string attention_signature(OpKind kind, const AttentionShape& shape) {
  const bool same_length = shape.keys == 0 || shape.keys == shape.sequence;
  return std::string(name_of(kind)) + " batch=" + std::to_string(shape.batch) +
         " sequence=" + std::to_string(shape.sequence) +
         (same_length ? "" : " keys=" + std::to_string(shape.keys)) +
         (shape.max_sequences == 0 ? "" : " max_sequences=" + std::to_string(shape.max_sequences)) +
         " heads=" + std::to_string(shape.heads) + " kv_heads=" + std::to_string(shape.kv_heads) +
         " head_dim=" + std::to_string(shape.head_dim) + " scale=" + std::to_string(attention_scale(shape)) +
         (shape.causal ? " causal" : " full") + window_text(shape) +
         (shape.dtype == DataType::kBf16 ? " bf16" : " f16");
}

}  // namespace mkernel::kernels
