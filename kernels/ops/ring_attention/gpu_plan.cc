#include "kernels/ops/ring_attention/gpu_plan.h"

#include <algorithm>
#include <cmath>

#include "kernels/ops/ring_attention/shape.h"
#include "kernels/plan/cuts.h"
#include "kernels/plan/gemm_shape.h"
#include "kernels/plan/positions.h"

namespace mkernel::kernels {
namespace {

constexpr OpKind kRing = OpKind::kRingAttention;
/// What one CTA pushes of a chunk: the fence behind it costs as much time as some pieces of 16 KiB.
constexpr std::int64_t kMostShareBytes = 128 << 10, kFewestShareBytes = 16 << 10;
/// So many chunks of a tensor are better than long ones: work on the first goes on while the others come.
constexpr std::int64_t kWantedChunks = 8;

Status refused(const std::string& field, std::int64_t value, const std::string& limit,
               StatusCode code = StatusCode::kInvalidArgument) {
  return {code,
          std::string(name_of(kRing)) + ": " + field + " = " + std::to_string(value) + ", must be " + limit};
}

Status check(const AttentionShape& shape, const Topology& topology, const Machine& machine,
             const RingAttentionOptions& options) {
  MK_RETURN_IF_ERROR(check_ring_attention_shape(shape));
  if (topology.nodes() > 1)
    return refused("nodes", topology.nodes(), "1 on the cuda executor", StatusCode::kUnimplemented);
  if (topology.ranks_per_node() > static_cast<std::uint32_t>(kMaxNodeRanks)) {
    return refused("ranks of a node", topology.ranks_per_node(),
                   "at most " + std::to_string(kMaxNodeRanks) + " on the cuda executor");
  }
  MK_RETURN_IF_ERROR(check_attention_counts(kRing, shape));
  MK_RETURN_IF_ERROR(check_attention_on_gpu(kRing, shape));
  if (const std::int64_t row = shape.kv_heads * shape.head_dim; row * 2 > KvGatherPlan::kMostRowBytes) {
    return refused("kv_heads * head_dim", row,
                   "at most " + std::to_string(KvGatherPlan::kMostRowBytes / 2) + " on the cuda executor");
  }
  if (machine.sms < 2) return refused("sms", machine.sms, "at least 2: one does not compute");
  if (options.comm_ctas < 0 || options.comm_ctas > machine.sms / 2) {
    return refused("comm_ctas", options.comm_ctas,
                   "0.." + std::to_string(machine.sms / 2) + ", half of the multiprocessors");
  }
  return {};
}

/// As many as the links can take, for they compute afterwards.
std::int32_t pushing_ctas(const Machine& machine, std::int32_t world) {
  if (world == 1) return 1;
  const auto wanted = static_cast<std::int32_t>(std::ceil(machine.links_bulk / machine.push_bytes));
  return std::clamp(machine.sms / 4, 1, wanted);
}

KvGatherPlan gather_plan(const AttentionShape& shape, const Topology& topology, std::uint32_t rank,
                         std::int32_t shares) {
  KvGatherPlan gather;
  gather.world = static_cast<std::int32_t>(topology.world());
  gather.rank = static_cast<std::int32_t>(rank);
  gather.batch = static_cast<std::int32_t>(shape.batch);
  gather.causal = shape.causal;
  gather.row.row_bytes = shape.kv_heads * shape.head_dim * 2;
  gather.shares = shares;
  std::int64_t most_rows = 1;
  for (std::int32_t source = 0; source < gather.world; ++source) {
    const Positions held = held_positions(shape.sequence, shape.causal, gather.world, source);
    for (int part = 0; part < 2; ++part)
      gather.part_rows[source][part] = static_cast<std::int32_t>(held.part[part].size());
    most_rows = std::max<std::int64_t>(most_rows, gather.rows(source));
  }
  const auto rows_of_share = [&](std::int64_t bytes) {
    return std::max<std::int64_t>(1, shares * bytes / gather.row.row_bytes);
  };
  const std::int64_t rows = std::clamp(ceil_div(most_rows, kWantedChunks), rows_of_share(kFewestShareBytes),
                                       rows_of_share(kMostShareBytes));
  gather.block_rows = static_cast<std::int32_t>(rows);
  gather.max_chunks = gather.block_rows.ceil(static_cast<std::int32_t>(most_rows));
  return gather;
}

}  // namespace

Result<RingGpuPlan> RingGpuPlan::make(const AttentionShape& shape, const Topology& topology,
                                      std::uint32_t rank, const Machine& machine,
                                      const RingAttentionOptions& options) {
  MK_RETURN_IF_ERROR(check(shape, topology, machine, options));
  RingGpuPlan plan;
  plan.shape = shape;
  plan.shape.keys = shape.sequence;
  plan.comm_ctas = options.comm_ctas > 0 ? options.comm_ctas
                                         : pushing_ctas(machine, static_cast<std::int32_t>(topology.world()));
  plan.ctas = machine.sms;
  plan.gather = gather_plan(shape, topology, rank, plan.comm_ctas);
  const auto& own = plan.gather.part_rows[rank];
  plan.first_tiles = attention_query_tiles(own[0]);
  plan.tasks = AttentionTasks(
      plan.gather.batch, static_cast<std::int32_t>(shape.heads), static_cast<std::int32_t>(shape.kv_heads),
      plan.first_tiles + attention_query_tiles(own[1]), 2 * shape.sequence * shape.head_dim * 2);
  return plan;
}

std::string RingGpuPlan::signature() const {
  return attention_signature(kRing, shape) + " comm_ctas=" + std::to_string(comm_ctas);
}

}  // namespace mkernel::kernels
