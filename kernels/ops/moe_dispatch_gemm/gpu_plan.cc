#include "kernels/ops/moe_dispatch_gemm/gpu_plan.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "kernels/ops/moe_dispatch_gemm/kernel.h"
#include "kernels/ops/moe_dispatch_gemm/parameters.h"
#include "kernels/plan/cuts.h"

namespace mkernel::kernels {
namespace {

constexpr std::int32_t kWarps = 12;  // of a CTA: two warpgroups that multiply, one that loads and stores
constexpr std::int32_t kUnitRows = 64;
constexpr std::int32_t kFewestSms = 4;  // a cluster that dispatches, one that computes
constexpr std::int64_t kMostPoolRows = (std::int64_t{1} << 31) - 1;

Status refuse(const std::string& field, std::int64_t value, const std::string& limit) {
  return {StatusCode::kInvalidArgument, "moe: " + field + " = " + std::to_string(value) +
                                            ", but it must be " + limit + " on the cuda executor"};
}

std::int32_t whole_clusters(std::int32_t ctas) {
  return ctas / kMoeCluster * kMoeCluster;
}

/// Of a launch: CTAs that dispatch, and those of them that sum when they have pushed.
struct Dispatching {
  std::int32_t ctas, summing;
};

/// By shape; both even. Every warp has a unit of rows to push, as long as at most a quarter of the CTAs begin
/// without a tile. One cluster sums meanwhile: more of them cost more than what is left to sum at the end
/// (tests/perf/notes.md).
Dispatching choose_dispatching(const MoeShape& shape, std::int32_t ctas) {
  constexpr std::int64_t kMostCtas = 16;
  const std::int64_t rows = shape.max_tokens * shape.topk;
  const std::int64_t clusters = ceil_div(rows, std::int64_t{kPushUnitRows} * kWarps * kMoeCluster);
  const std::int64_t most = std::min<std::int64_t>(kMostCtas, ctas / 4) / kMoeCluster;
  const auto chosen = static_cast<std::int32_t>(std::max<std::int64_t>(1, std::min(clusters, most)));
  return {chosen * kMoeCluster, kMoeCluster};
}

/// Rows of an expert, when the routing is even and every rank has as many tokens as it may.
std::int64_t even_rows(const MoePlan& plan) {
  return ceil_div(plan.shape.max_tokens * plan.topology.world() * plan.shape.topk, plan.shape.experts);
}

/// Whether rows of other nodes are sections of their own: where the products of a rank take longer than the
/// wire both ways, so that there is something to hide it behind, and clearly longer than reading all weights
/// twice (simulation/moe_time.h; tests/perf/notes.md).
bool choose_apart(const MoePlan& plan, const Machine& machine) {
  if (plan.topology.nodes() == 1) return false;
  const ExpertExchangePlan& exchange = plan.exchange;
  const double weights = static_cast<double>(plan.shape.hidden * plan.w1_columns() +
                                             plan.shape.intermediate * plan.shape.n);  // of an expert
  const double product =
      2 * static_cast<double>(even_rows(plan)) * weights / (machine.product_operations * machine.sms);
  const double reading = 2 * 2 * weights / machine.memory_bytes;
  const double wire = static_cast<double>(exchange.others()) * static_cast<double>(exchange.max_tokens) *
                      static_cast<double>(exchange.crossing_bytes() + exchange.finished_bytes) / machine.nic;
  return product >= 1.3 * reading && product * exchange.owners.max_local() >= wire;
}

/// ExpertTasks::lead for `clusters` that compute. With fewer tasks of the first product per section than
/// there are clusters, tasks of several sections run at a time, and the second product would wait for the
/// slowest of them. No more than that: results of the first product are best read while they are in the L2.
std::int32_t choose_lead(const MoePlan& plan, std::int64_t clusters) {
  // Of an expert apart, the near rows are the fewest.
  const std::int64_t rows = plan.sections.apart ? even_rows(plan) / plan.topology.nodes() : even_rows(plan);
  const std::int64_t blocks =
      std::clamp<std::int64_t>(ceil_div(rows, std::int64_t{tile_rows(kMoeTile)}), 1, plan.sections.most);
  const std::int64_t tasks =
      blocks * ceil_div(std::int64_t{plan.exchange.columns1}, std::int64_t{kMoeCluster});
  return static_cast<std::int32_t>(clusters * std::max<std::int64_t>(1, clusters / tasks));
}

/// Where reading weights is all there is to do: as much as stays in the L2.
std::int32_t choose_foreseen_steps(const MoePlan& plan, std::int64_t ctas) {
  constexpr std::int64_t kBytes = std::int64_t{24} << 20;
  constexpr std::int64_t kStepBytes = std::int64_t{tile_columns(kMoeTile)} * kSm90TileK * 2;
  if (even_rows(plan) > kUnitRows) return 0;
  return static_cast<std::int32_t>(
      std::min(ceil_div(plan.shape.hidden, std::int64_t{kSm90TileK}), kBytes / kStepBytes / ctas));
}

/// Parts of an own token: with few tokens every warp that multiplies has one to sum.
std::int32_t choose_sum_parts(const MoeShape& shape, std::int64_t ctas) {
  constexpr std::int64_t kSummingWarps = 8;
  return static_cast<std::int32_t>(
      std::clamp<std::int64_t>(ceil_div(kSummingWarps * ctas, shape.max_tokens), 1,
                               ceil_div(2 * shape.n, std::int64_t{kMoeSumBytes})));
}

Status check_options(const MoeOptions& options, std::int32_t sms) {
  for (const auto& [name, value, only] :
       {std::tuple{"block_rows", options.block_rows, tile_rows(kMoeTile)},
        {"unit_rows", options.unit_rows, kUnitRows},
        {"tile_columns", options.tile_columns, tile_columns(kMoeTile)},
        {"gated_columns", options.gated_columns, tile_columns(kMoeTile) / 2}})
    if (value != 0 && value != only) return refuse(name, value, std::to_string(only));
  if (sms < kFewestSms) return refuse("sms", sms, "at least " + std::to_string(kFewestSms));
  const std::int32_t most = whole_clusters(sms) - kMoeCluster;
  const std::int32_t dispatch = options.dispatch_ctas;
  for (const auto& [name, value, limit] :
       {std::tuple{"comm_ctas", dispatch, most},  // as GemmPlanOptions has it
        {"summing_ctas", options.summing_ctas, dispatch > 0 ? dispatch : most}}) {
    if (value < 0 || value > limit || value != whole_clusters(value))
      return refuse(name, value, "even, 0.." + std::to_string(limit));
  }
  return {};
}

/// Of a shape that a MoePlan could be made of.
Status check_shape(const MoeShape& shape, const Topology& topology) {
  for (const auto& [name, value] : {std::pair{"hidden", shape.hidden},
                                    {"intermediate", shape.intermediate},
                                    {"n", shape.n},
                                    {"shared_intermediate", shape.shared_intermediate}})
    if (value % 8 != 0) return refuse(name, value, "a multiple of 8");
  for (const auto& [name, value, most] :
       {std::tuple{"experts", shape.experts, kMoeMostExperts},
        {"topk", shape.topk, kMoeMostTopk},
        {"world", std::int64_t{topology.world()}, kMaxKernelRanks},
        {"nodes", std::int64_t{topology.nodes()}, kMaxKernelNodes},
        {"ranks of a node", std::int64_t{topology.ranks_per_node()}, kMaxNodeRanks}})
    if (value > most) return refuse(name, value, "1.." + std::to_string(most));
  // Where an expert's weights begin is a coordinate of a tensor map.
  const std::int64_t of_rank = ceil_div(shape.experts, std::int64_t{topology.world()});
  const std::int64_t w1_rows = shape.intermediate > 0 ? 2 * shape.intermediate : shape.n;
  for (const auto& [name, value, rows] : {std::tuple{"hidden", shape.hidden, shape.hidden},
                                          {"intermediate", shape.intermediate, w1_rows},
                                          {"n", shape.n, shape.n}}) {
    if (rows > kMostPoolRows / of_rank) {
      return refuse(
          name, value,
          "so small that rows of the weights of " + std::to_string(of_rank) + " experts have 32-bit numbers");
    }
  }
  return {};
}

std::size_t routing_bytes_of(const ExpertExchangePlan& exchange) {
  return sizeof(std::int32_t) * static_cast<std::size_t>(moe_routing_words(
                                    kWarps, exchange.owners.experts, exchange.owners.max_local(),
                                    exchange.order(0).steps(), exchange.others()));
}

}  // namespace

Result<MoeGpuPlan> MoeGpuPlan::make(const MoeShape& shape, const Topology& topology, const Machine& machine,
                                    const MoeOptions& options) {
  MK_RETURN_IF_ERROR(check_options(options, machine.sms));
  MoeOptions tiles = options;
  tiles.block_rows = tile_rows(kMoeTile);
  tiles.unit_rows = kUnitRows;
  tiles.tile_columns = tile_columns(kMoeTile);
  tiles.gated_columns = tiles.tile_columns / 2;
  auto moe = MoePlan::make(shape, topology, tiles);
  if (!moe.ok()) return moe.status();
  MK_RETURN_IF_ERROR(check_shape(shape, topology));
  MoeGpuPlan plan{.moe = std::move(*moe), .machine = machine, .ctas = whole_clusters(machine.sms)};
  const Dispatching chosen = choose_dispatching(shape, plan.ctas);
  std::int32_t& dispatch = plan.moe.dispatch_ctas;
  dispatch = options.dispatch_ctas > 0 ? options.dispatch_ctas : std::max(chosen.ctas, options.summing_ctas);
  plan.summing_ctas = options.summing_ctas > 0 ? options.summing_ctas : std::min(chosen.summing, dispatch);
  plan.moe.sections.apart = options.apart.value_or(choose_apart(plan.moe, machine));
  plan.moe.lead = choose_lead(plan.moe, (plan.ctas - plan.summing_ctas) / kMoeCluster);
  plan.foreseen_steps = choose_foreseen_steps(plan.moe, plan.ctas);
  plan.sum_parts = choose_sum_parts(shape, plan.ctas);
  plan.routing_bytes = routing_bytes_of(plan.moe.exchange);
  if (plan.routing_bytes <= kMoeMostRoutingBytes) return plan;
  return refuse("experts", shape.experts,
                "so few that their counts take at most " + std::to_string(kMoeMostRoutingBytes) +
                    " bytes of shared memory");
}

std::string MoeGpuPlan::signature() const {
  return moe.signature() + " cuda " + text_of(machine) +
         " dispatch_ctas=" + std::to_string(moe.dispatch_ctas) +
         " summing_ctas=" + std::to_string(summing_ctas);
}

}  // namespace mkernel::kernels
