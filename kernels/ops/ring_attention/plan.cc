#include "kernels/ops/ring_attention/plan.h"

#include <algorithm>
#include <string>
#include <tuple>

#include "kernels/ops/ring_attention/attention_slots.h"
#include "kernels/ops/ring_attention/shape.h"
#include "kernels/plan/gemm_shape.h"
#include "kernels/plan/positions.h"
#include "kernels/plan/ring_sequences.h"

namespace mkernel::kernels {
namespace {

/// Own keys first, for these are there. Then those of the rank of the node before this one, which pushes to
/// this one first, and so on. Then those of the other nodes, likewise from the node before this one on.
void order_sources(const Topology& topology, std::uint32_t rank, KvGatherPlan& gather) {
  const std::uint32_t nodes = topology.nodes(), ranks = topology.ranks_per_node();
  std::int8_t* next = gather.sources;
  for (std::uint32_t back = 0; back < nodes; ++back) {
    const std::uint32_t node = (topology.node_of(rank) + nodes - back) % nodes;
    for (std::uint32_t before = 0; before < ranks; ++before, ++next)
      *next = static_cast<std::int8_t>(
          topology.rank_at(node, (topology.local_of(rank) + ranks - before) % ranks));
  }
}

KvGatherPlan gather_plan(const AttentionShape& shape, const Topology& topology, std::uint32_t rank) {
  KvGatherPlan gather;
  gather.world = static_cast<std::int32_t>(topology.world());
  gather.rank = static_cast<std::int32_t>(rank);
  gather.near = static_cast<std::int32_t>(topology.ranks_per_node()) - 1;
  gather.heads = static_cast<std::int32_t>(shape.batch * shape.kv_heads);
  gather.kv_heads = static_cast<std::int32_t>(shape.kv_heads);
  gather.causal = shape.causal && shape.max_sequences == 0;
  gather.row_bytes = static_cast<std::int32_t>(shape.head_dim * 2);
  order_sources(topology, rank, gather);
  for (std::int32_t source = 0; source < gather.world; ++source) {
    const Positions held = held_positions(shape.sequence, gather.causal, gather.world, source);
    for (int part = 0; part < 2; ++part)
      gather.part_rows[source][part] = static_cast<std::int32_t>(held.part[part].size());
  }
  return gather;
}

}  // namespace

Status RingPlan::check(OpKind kind, const AttentionShape& shape, const Topology& topology) {
  MK_RETURN_IF_ERROR(check_ring_attention_shape(kind, shape));
  MK_RETURN_IF_ERROR(check_attention_counts(kind, shape));
  // Rows of slabs and turns of chunks are counted in 32 bits.
  for (const auto& [field, value, most] :
       {std::tuple{"world", std::int64_t{topology.world()}, std::int64_t{kMaxKernelRanks}},
        {"batch * sequence * kv_heads", shape.batch * shape.sequence * shape.kv_heads, std::int64_t{1} << 30},
        {"batch * kv_heads", shape.batch * shape.kv_heads, std::int64_t{1} << 20},
        {"heads * max_sequences", shape.heads * shape.max_sequences, std::int64_t{1} << 28}}) {
    if (value <= most) continue;
    return {StatusCode::kInvalidArgument, std::string(name_of(kind)) + ": " + field + " = " +
                                              std::to_string(value) + ", must be at most " +
                                              std::to_string(most)};
  }
  if (shape.max_sequences == 0 || shape.sequence % topology.world() == 0) return {};
  return {StatusCode::kInvalidArgument,
          std::string(name_of(kind)) + ": sequence = " + std::to_string(shape.sequence) +
              ", must be a multiple of the " + std::to_string(topology.world()) +
              " ranks with max_sequences, for every rank holds equally many rows"};
}

RingPlan RingPlan::make(const AttentionShape& shape, const Topology& topology, std::uint32_t rank) {
  RingPlan plan{.shape = shape, .gather = gather_plan(shape, topology, rank)};
  plan.shape.keys = shape.sequence;
  plan.gather.cut(std::max(1, plan.most_positions()));
  const auto& own = plan.gather.part_rows[rank];
  std::int32_t tiles = attention_query_tiles(own[0]) + attention_query_tiles(own[1]);
  plan.first_tiles = attention_query_tiles(own[0]);
  if (plan.packed())
    plan.first_tiles = tiles =
        std::max(1, own[0] / plan.average_rows() * ring_tiles(plan.average_rows(), shape.causal));
  plan.tasks = AttentionTasks(static_cast<std::int32_t>(shape.batch), static_cast<std::int32_t>(shape.heads),
                              plan.gather.kv_heads, tiles, plan.kv_bytes());
  return plan;
}

std::int64_t RingPlan::kv_bytes() const {
  return 2 * shape.sequence * shape.head_dim * 2;
}

std::int32_t RingPlan::most_positions() const {
  std::int32_t most = 0;
  for (std::int32_t source = 0; source < gather.world; ++source)
    most = std::max(most, gather.positions(source));
  return most;
}

Range RingPlan::query_rows(std::int32_t tile) const {
  const int part = tile < first_tiles ? 0 : 1;
  const std::int64_t end = part_begin(part) + gather.part_rows[gather.rank][part];
  const std::int64_t begin =
      part_begin(part) + std::int64_t{tile - part * first_tiles} * kAttentionTileQueries;
  return {begin, std::min(end, begin + kAttentionTileQueries)};
}

Status RingPlan::check(const AttentionArguments& arguments) const {
  constexpr OpKind kKind = OpKind::kRingAttention;
  const std::int64_t positions = gather.positions(gather.rank);
  MK_RETURN_IF_ERROR(check_attention_operands(kKind, arguments, positions, positions));
  const std::int32_t* const q = arguments.cu_seqlens_q;
  const std::int32_t* const k = arguments.cu_seqlens_k;
  if (packed() && k != nullptr && k != q) {
    return {StatusCode::kInvalidArgument,
            std::string(name_of(kKind)) +
                ": cu_seqlens_k must be null or cu_seqlens_q: keys have the same lengths"};
  }
  return check_attention_lengths(kKind, shape, q, packed() ? q : k);
}

std::int32_t RingPlan::average_rows() const {
  return std::max(ring_parts(shape.causal),
                  gather.positions(gather.rank) / static_cast<std::int32_t>(shape.max_sequences));
}

AttentionLengths RingPlan::lengths(const AttentionArguments& arguments) const {
  const std::int32_t rows = gather.positions(gather.rank);
  return {arguments.cu_seqlens_q, arguments.cu_seqlens_q, static_cast<std::int32_t>(shape.max_sequences),
          rows, rows};
}

Status RingPlan::refuse(const BadLength& bad) const {
  if (bad.number < 0) return {};
  constexpr OpKind kKind = OpKind::kRingAttention;
  if (bad.value < bad.least || bad.value > bad.most) return refuse_attention_length(kKind, shape, bad);
  return {
      StatusCode::kInvalidArgument,
      std::string(name_of(kKind)) + ": cu_seqlens_q[" + std::to_string(bad.number) + "] = " +
          std::to_string(bad.value) + " ends a sequence of " + std::to_string(bad.value - bad.least) +
          " rows of each rank, but it must be an even number: a causal sequence has two parts of the same "
          "size on every rank"};
}

std::int32_t RingPlan::section_heads() const {
  return attention_section_heads(gather.kv_heads, static_cast<std::int32_t>(group()), kv_bytes());
}

std::vector<AttentionSlot> RingPlan::slots(const AttentionLengths& lengths) const {
  return attention_slots(RingTaskList{shape.causal, section_heads()}, lengths);
}

}  // namespace mkernel::kernels
