#include "kernels/ops/ring_attention/attention_plan.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "kernels/ops/ring_attention/shape.h"
#include "kernels/plan/gemm_shape.h"

namespace mkernel::kernels {
namespace {

constexpr OpKind kAlone = OpKind::kAttention;

Status refused(const std::string& what, std::int64_t value, const std::string& limit) {
  return {StatusCode::kInvalidArgument, std::string(name_of(kAlone)) + ": " + what + " = " +
                                            std::to_string(value) + ", but it must be " + limit};
}

}  // namespace

Result<AttentionPlan> AttentionPlan::make(AttentionShape shape) {
  MK_RETURN_IF_ERROR(check_attention_shape(kAlone, shape));
  if (shape.keys == 0) shape.keys = shape.sequence;
  MK_RETURN_IF_ERROR(check_attention_counts(kAlone, shape));
  return AttentionPlan{shape};
}

Status AttentionPlan::check_on_gpu() const {
  MK_RETURN_IF_ERROR(check_attention_on_gpu(kAlone, shape));
  if (plain() || shape.batch <= kMostSequences) return {};
  return refused("batch", shape.batch, "at most " + std::to_string(kMostSequences) + " with a window");
}

std::string AttentionPlan::signature() const {
  return attention_signature(kAlone, shape);
}

std::int32_t AttentionPlan::tile_keys() const {
  return attention_tile_keys(static_cast<std::int32_t>(shape.head_dim), masked(),
                             shape.keys / std::max<std::int64_t>(shape.max_sequences, 1));
}

AttentionTasks AttentionPlan::tasks() const {
  return AttentionTasks(static_cast<std::int32_t>(shape.batch), static_cast<std::int32_t>(shape.heads),
                        static_cast<std::int32_t>(shape.kv_heads),
                        attention_query_tiles(static_cast<std::int32_t>(shape.sequence)),
                        2 * shape.keys * shape.head_dim * 2);
}

Status AttentionPlan::check(const AttentionArguments& arguments) const {
  MK_RETURN_IF_ERROR(check_attention_operands(kAlone, arguments, shape.sequence, shape.keys));
  const std::string packed = "max_sequences = " + std::to_string(shape.max_sequences);
  for (const auto& [field, lengths] :
       {std::pair{"cu_seqlens_q", arguments.cu_seqlens_q}, {"cu_seqlens_k", arguments.cu_seqlens_k}}) {
    if ((lengths != nullptr) == (shape.max_sequences > 0)) continue;
    return {StatusCode::kInvalidArgument,
            std::string(name_of(kAlone)) + ": " + field +
                (lengths == nullptr ? " is null, but " : " must be null, because ") + packed};
  }
  return {};
}

Status AttentionPlan::refuse(const BadLength& bad) const {
  if (bad.number < 0) return {};
  const std::int64_t of_each = shape.max_sequences + 1;
  const char* field = bad.number < of_each ? "cu_seqlens_q[" : "cu_seqlens_k[";
  return refused(field + std::to_string(bad.number % of_each) + "]", bad.value,
                 std::to_string(bad.least) + ".." + std::to_string(bad.most));
}

AttentionWindow AttentionPlan::window() const {
  // More than all positions of queries and keys together hides nothing.
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  const auto limit = [](std::int64_t wanted) {
    return wanted < 0 || wanted > kMost ? AttentionWindow::kAll : static_cast<std::int32_t>(wanted);
  };
  return {limit(shape.window_left), shape.causal ? 0 : limit(shape.window_right)};
}

AttentionLengths AttentionPlan::lengths(const AttentionArguments& arguments) const {
  return {arguments.cu_seqlens_q, arguments.cu_seqlens_k,
          static_cast<std::int32_t>(shape.max_sequences > 0 ? shape.max_sequences : shape.batch),
          static_cast<std::int32_t>(shape.sequence), static_cast<std::int32_t>(shape.keys)};
}

std::vector<AttentionSlot> AttentionPlan::slots(const AttentionLengths& lengths) const {
  const auto heads = static_cast<std::int32_t>(shape.heads),
             kv_heads = static_cast<std::int32_t>(shape.kv_heads);
  std::vector<AttentionSequence> sequences;
  std::vector<std::int32_t> order;
  for (std::int32_t i = 0; i < lengths.sequences; ++i) {
    sequences.push_back(attention_sequence(lengths, i));
    order.push_back(i);
  }
  const auto keys = [&](std::int32_t i) { return sequences[static_cast<std::size_t>(i)].keys; };
  std::sort(order.begin(), order.end(),
            [&](std::int32_t a, std::int32_t b) { return attention_comes_before(a, keys(a), b, keys(b)); });
  std::vector<AttentionSlot> slots;
  std::int32_t tasks = 0;
  for (const std::int32_t i : order) {
    const AttentionSequence& sequence = sequences[static_cast<std::size_t>(i)];
    slots.push_back({sequence, tasks,
                     attention_section_heads(kv_heads, heads / kv_heads,
                                             2 * 2 * shape.head_dim * std::max(sequence.keys, 1))});
    tasks += attention_query_tiles(sequence.queries) * heads;
  }
  slots.push_back({{}, tasks, 0});
  return slots;
}

}  // namespace mkernel::kernels
