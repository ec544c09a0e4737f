#include "kernels/ops/ag_gemm/cuda_estimate.h"

#include <algorithm>
#include <cmath>

namespace mkernel::kernels {
namespace {

// Measured on H200s.
constexpr double kClock = 1.755e9;            ///< cycles a second under load
constexpr double kCtaPushes = 46e9;           ///< bytes a second of one pushing CTA
constexpr double kLinksTake = 345e9;          ///< of all links of a GPU, one way, as bulk stores
constexpr double kBegin = 3e-6, kEnd = 3e-6;  ///< launch; last stores
constexpr double kOnTheWay = 3e-6;            ///< from a push to the waiter that sees it

double push_rate(std::int32_t ctas) {
  return std::pow(std::pow(ctas * kCtaPushes, -4) + std::pow(kLinksTake, -4), -0.25);
}

struct Pace {
  const AgGemmCudaPlan& plan;
  double part_seconds;  ///< from part to part of a block, pushed to all

  /// When part `part` of the rows of a step of the raster is there.
  double arrival(std::int32_t row, std::int32_t part) const {
    const ArrivalSteps::Place step = plan.steps.place(row);
    if (step.source == plan.steps.rank) return 0;
    return kBegin + kOnTheWay + (step.block * plan.gather.row.parts + part + 1) * part_seconds;
  }
  double run(double now, std::int32_t row, double cycles) const {
    const std::int32_t parts = plan.gather.row.parts;
    for (std::int32_t part = 0; part < parts; ++part)
      now = std::max(now, arrival(row, part)) + cycles / kClock / parts;
    return now;
  }
};

}  // namespace

double estimated_seconds(const GemmShape& shape, const AgGemmCudaPlan& plan) {
  const std::int32_t clusters = plan.compute_ctas / tile_cluster(plan.tile);
  const std::int32_t parts = tail_parts(plan.tile);
  const double whole = tile_cycles(shape.k, plan.tile, tile_columns(plan.tile));
  const double narrow = tile_cycles(shape.k, plan.tile, kSm90TailColumns);
  const auto block_bytes = static_cast<double>(plan.gather.block_rows * plan.gather.row.row_bytes);
  const Pace pace{plan,
                  block_bytes / plan.gather.row.parts * (plan.gather.world - 1) / push_rate(plan.comm_ctas)};
  double last = 0;
  for (std::int32_t cluster = 0; cluster < clusters; ++cluster) {
    double now = kBegin;
    for (std::int32_t i = 0; i < plan.deal.tiles(cluster, clusters); ++i)
      now = pace.run(now, plan.deal.place(i, cluster, clusters).tile.row, whole);
    for (std::int32_t i = 0; i < plan.deal.tail_tiles(cluster, clusters, parts); ++i)
      now = pace.run(now, plan.deal.tail_place(i, cluster, clusters, parts).tile.row, narrow);
    last = std::max(last, now);
  }
  return last + kEnd;
}

}  // namespace mkernel::kernels
