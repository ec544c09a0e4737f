#include "kernels/ops/ring_attention/gpu_plan.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/ops/ring_attention/estimate.h"
#include "kernels/ops/ring_attention/shape.h"
#include "kernels/plan/cuts.h"
#include "kernels/plan/gemm_shape.h"

namespace mkernel::kernels {
namespace {

constexpr OpKind kRing = OpKind::kRingAttention;
/// What one CTA pushes of a chunk at most: work on the first one goes on while the others come. The fence
/// behind a chunk costs as much time as some pieces, so it is no less than a head has.
constexpr std::int64_t kMostShareBytes = 128 << 10;
/// Over several nodes a chunk is also a put, and short ones do not fill the wire: where both ways are used,
/// puts of 256 KiB reached two thirds of it, those of 1 MiB all (daemon/transport/emulated/README.md).
constexpr std::int64_t kFewestPutBytes = 1 << 20;

Status refused(OpKind kind, const std::string& field, std::int64_t value, const std::string& limit) {
  return {StatusCode::kInvalidArgument,
          std::string(name_of(kind)) + ": " + field + " = " + std::to_string(value) + ", must be " + limit};
}

Status at_most(OpKind kind, const std::string& field, std::int64_t value, std::int64_t limit) {
  if (value <= limit) return {};
  return refused(kind, field, value, "at most " + std::to_string(limit) + " on the cuda executor");
}

Status check_on_gpu(OpKind kind, const AttentionShape& shape, const Topology& topology,
                    const Machine& machine, const RingAttentionOptions& options) {
  MK_RETURN_IF_ERROR(RingPlan::check(kind, shape, topology));
  MK_RETURN_IF_ERROR(at_most(kind, "nodes", topology.nodes(), machine.most_nodes));
  MK_RETURN_IF_ERROR(at_most(kind, "ranks of a node", topology.ranks_per_node(), machine.most_node_ranks));
  MK_RETURN_IF_ERROR(check_attention_on_gpu(kind, shape));
  const bool several = topology.nodes() > 1;
  if (machine.sms < 2 && (several || kind != kRing)) {
    return refused(
        kind, "sms", machine.sms,
        std::string("at least 2") + (several ? " over several nodes" : "") + ": one does not compute");
  }
  if (options.comm_ctas < 0 || options.comm_ctas > machine.sms / 2) {
    return refused(kind, "comm_ctas", options.comm_ctas,
                   "0.." + std::to_string(machine.sms / 2) + ", half of the multiprocessors");
  }
  return {};
}

/// How many may push. On one node as many as the links can take, for they compute afterwards. Over several
/// nodes they wait for the wire meanwhile, and fewer may be better.
std::vector<std::int32_t> pushing_ctas(const Machine& machine, const Topology& topology) {
  if (topology.world() == 1) return {1};
  const auto wanted = static_cast<std::int32_t>(std::ceil(machine.links_bulk / machine.push_bytes));
  const std::int32_t most = std::clamp(machine.sms / 4, 1, wanted);
  if (topology.nodes() == 1) return {most};
  std::vector<std::int32_t> counts;
  for (std::int32_t count = 1; count < most; count *= 2) counts.push_back(count);
  counts.push_back(most);
  return counts;
}

/// Rows of a chunk, of sources with `positions` at most. Where a head has several chunks, the share of a CTA
/// is whole pieces.
std::int64_t chunk_rows(const KvGatherPlan& gather, std::int64_t positions) {
  const std::int64_t bytes = positions * gather.row_bytes;
  std::int64_t blocks = ceil_div(bytes, gather.shares * kMostShareBytes);
  if (gather.rails() > 0) blocks = std::min(blocks, bytes / kFewestPutBytes);
  if (blocks <= 1) return std::max<std::int64_t>(1, positions);
  const std::int64_t pieces = std::int64_t{gather.shares} * gather.piece_rows();
  return ceil_div(ceil_div(positions, blocks), pieces) * pieces;
}

/// KvGatherPlan::own_between.
std::int32_t own_chunks_between(const KvGatherPlan& gather, const Machine& machine) {
  if (gather.rails() == 0) return 1;
  const double bytes = static_cast<double>(std::int64_t{gather.block_rows} * gather.row_bytes);
  const double own = push_seconds(machine, bytes, gather.near + 1, gather.near, gather.shares);
  const double far = push_seconds(machine, bytes, gather.near, gather.near, gather.shares);
  const double chunks = gather.rails() * (bytes / machine.nic - far) / own;
  return static_cast<std::int32_t>(std::clamp(chunks, 1.0, static_cast<double>(gather.chunks())));
}

/// KvChunks::first_heads: those of the tasks that all CTAs take first.
std::int32_t first_heads_of(const RingGpuPlan& plan) {
  std::int32_t heads = 0;
  for (std::int32_t task = 0; task < std::min(plan.ctas, plan.tasks.tasks()); ++task) {
    const AttentionTasks::Place place = plan.tasks.place(task);
    const auto kv_head = static_cast<std::int32_t>(place.head / plan.group());
    heads = std::max(heads, place.batch * plan.gather.kv_heads + kv_head + 1);
  }
  return heads;
}

RingGpuPlan plan_of(const AttentionShape& shape, const Topology& topology, std::uint32_t rank,
                    const Machine& machine, std::int32_t comm_ctas) {
  RingGpuPlan plan{RingPlan::make(shape, topology, rank), comm_ctas, machine.sms, machine};
  plan.gather.shares = comm_ctas;
  plan.gather.cut(static_cast<std::int32_t>(chunk_rows(plan.gather, plan.most_positions())));
  plan.gather.own_between = own_chunks_between(plan.gather, machine);
  return plan;
}

/// With which a launch is expected to end first; of two that are nearly as fast, with fewer. Tasks must not
/// wait for CTAs that push more slowly than expected, so it is chosen for half of their rates.
std::int32_t choose_comm_ctas(const AttentionShape& shape, const Topology& topology, const Machine& machine) {
  constexpr double kClearly = 0.99, kSlower = 2;
  Machine slower = machine;
  slower.push_bytes /= kSlower;
  slower.prepare_bytes /= kSlower;
  const std::vector<std::int32_t> counts = pushing_ctas(machine, topology);
  if (counts.size() == 1) return counts[0];
  std::int32_t best = 0;
  double best_seconds = 0;
  for (const std::int32_t count : counts) {
    // A rank's own number must not decide: all ranks need the same chunks.
    const double seconds = estimated_seconds(plan_of(shape, topology, 0, slower, count));
    if (best > 0 && seconds > kClearly * best_seconds) continue;
    best = count;
    best_seconds = seconds;
  }
  return best;
}

}  // namespace

Result<RingGpuPlan> RingGpuPlan::make(const AttentionShape& shape, const Topology& topology,
                                      std::uint32_t rank, const Machine& machine,
                                      const RingAttentionOptions& options, OpKind kind) {
  MK_RETURN_IF_ERROR(check_on_gpu(kind, shape, topology, machine, options));
  const std::int32_t comm_ctas =
      options.comm_ctas > 0 ? options.comm_ctas : choose_comm_ctas(shape, topology, machine);
  RingGpuPlan plan = plan_of(shape, topology, rank, machine, comm_ctas);
  if (kind == kRing && topology.nodes() == 1 && !plan.packed())
    plan.gather.first_heads = first_heads_of(plan);
  return plan;
}

std::string RingGpuPlan::signature() const {
  return attention_signature(kRing, shape) + " comm_ctas=" + std::to_string(comm_ctas);
}

}  // namespace mkernel::kernels
