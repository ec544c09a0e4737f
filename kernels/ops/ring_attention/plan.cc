#include "kernels/ops/ring_attention/plan.h"

#include <algorithm>
#include <string>
#include <tuple>

#include "kernels/ops/ring_attention/shape.h"
#include "kernels/plan/gemm_shape.h"
#include "kernels/plan/positions.h"

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
  gather.causal = shape.causal;
  gather.row_bytes = static_cast<std::int32_t>(shape.head_dim * 2);
  order_sources(topology, rank, gather);
  for (std::int32_t source = 0; source < gather.world; ++source) {
    const Positions held = held_positions(shape.sequence, shape.causal, gather.world, source);
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
        {"batch * kv_heads", shape.batch * shape.kv_heads, std::int64_t{1} << 20}}) {
    if (value <= most) continue;
    return {StatusCode::kInvalidArgument, std::string(name_of(kind)) + ": " + field + " = " +
                                              std::to_string(value) + ", must be at most " +
                                              std::to_string(most)};
  }
  return {};
}

RingPlan RingPlan::make(const AttentionShape& shape, const Topology& topology, std::uint32_t rank) {
  RingPlan plan{.shape = shape, .gather = gather_plan(shape, topology, rank)};
  plan.shape.keys = shape.sequence;
  plan.gather.cut(std::max(1, plan.most_positions()));
  const auto& own = plan.gather.part_rows[rank];
  plan.first_tiles = attention_query_tiles(own[0]);
  plan.tasks = AttentionTasks(static_cast<std::int32_t>(shape.batch), static_cast<std::int32_t>(shape.heads),
                              plan.gather.kv_heads, plan.first_tiles + attention_query_tiles(own[1]),
                              2 * shape.sequence * shape.head_dim * 2);
  return plan;
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

}  // namespace mkernel::kernels
