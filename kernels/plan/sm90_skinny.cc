#include "kernels/plan/sm90_skinny.h"

#include <algorithm>
#include <cmath>

#include "kernels/plan/cuts.h"
#include "kernels/plan/machine.h"

namespace mkernel::kernels {
namespace {

/// From the first load to the first product.
constexpr double kFillCycles = 600;

double bytes_of(const GemmShape& shape) {
  const auto m = static_cast<double>(shape.m), n = static_cast<double>(shape.n),
             k = static_cast<double>(shape.k);
  return 2 * (m * k + k * n + m * n);
}

/// Where two bounds are close, neither is reached.
double at_least(double one, double other) {
  return std::pow(std::pow(one, 4) + std::pow(other, 4), 0.25);
}

}  // namespace

double estimated_seconds(const GemmShape& shape, const Machine& machine, const Sm90SkinnyPlan& plan) {
  const auto ctas = static_cast<double>(ceil_div(shape.n, kSkinnyColumns) * plan.split);
  const double sms = machine.sms;
  const auto cta_steps = static_cast<double>(ceil_div(ceil_div(shape.k, kSm90TileK), plan.split));
  // Memory: its rate, or what the bytes of b under way allow.
  const double resident = std::min(ctas, sms * kSkinnyCtasPerSm);
  const double under_way = resident * skinny_stages(plan.rows) * kSkinnyColumns * kSm90TileK * 2;
  const double memory = bytes_of(shape) / std::min(machine.memory_bytes, under_way / machine.memory_latency);
  // L2: a's rows come once for every tile. Rows that are padding are not asked for.
  const double step_bytes = static_cast<double>(shape.m + kSkinnyColumns) * kSm90TileK * 2;
  const double l2 = ctas * cta_steps * step_bytes / std::min(ctas, sms) / machine.l2_bytes / machine.clock;
  // A CTA sends the sums of all rows but its own: of two half of them.
  const double sent = 1 - 1.0 / plan.split;
  return kFillCycles / machine.clock + at_least(memory, l2) + 2 * sent * machine.cluster_exchange;
}

std::optional<Sm90SkinnyPlan> plan_sm90_skinny(const GemmShape& shape, const Machine& machine) {
  if (shape.m > kSkinnyMostRows) return std::nullopt;
  const auto* rows = std::find_if(std::begin(kSkinnyRows), std::end(kSkinnyRows),
                                  [&](std::int32_t padded) { return padded >= shape.m; });
  Sm90SkinnyPlan best{*rows, 1};
  const std::int64_t steps = ceil_div(shape.k, kSm90TileK);
  for (std::int32_t split = 2; split <= kSkinnyMostSplit && split <= steps; split *= 2) {
    const Sm90SkinnyPlan plan{*rows, split};
    if (estimated_seconds(shape, machine, plan) < estimated_seconds(shape, machine, best)) best = plan;
  }
  return best;
}

Sm90LocalPlan plan_sm90_local(const GemmShape& shape, const Machine& machine) {
  if (const auto skinny = plan_sm90_skinny(shape, machine)) return *skinny;
  return plan_sm90_any_cluster(shape, machine);
}

}  // namespace mkernel::kernels
