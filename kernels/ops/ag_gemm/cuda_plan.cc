#include "kernels/ops/ag_gemm/cuda_plan.h"

#include <algorithm>
#include <string>

#include "kernels/ops/gemm_shape.h"
#include "kernels/schedule/tiles.h"

namespace mkernel::kernels {
namespace {

Status refuse(const std::string& what) {
  return {StatusCode::kInvalidArgument, "ag_gemm: " + what};
}

Status check(const GemmShape& shape, const Topology& topology, std::int32_t sms,
             const AgGemmCudaOptions& options) {
  MK_RETURN_IF_ERROR(check_shape(OpKind::kAgGemm, shape));
  if (topology.nodes() != 1) {
    return {StatusCode::kUnimplemented,
            "ag_gemm: the cuda executor runs on one node, the group has " + std::to_string(topology.nodes())};
  }
  if (topology.world() > kMaxAgGemmSources) {
    return refuse("world = " + std::to_string(topology.world()) + ", must be 1.." +
                  std::to_string(kMaxAgGemmSources) + " on the cuda executor");
  }
  for (const auto& [name, value] : {std::pair{"n", shape.n}, std::pair{"k", shape.k}}) {
    if (value % 8 != 0) {
      return refuse(std::string(name) + " = " + std::to_string(value) +
                    ", must be a multiple of 8 on the cuda executor (TMA moves rows of whole 16 bytes)");
    }
  }
  if (options.comm_ctas < 0 || options.comm_ctas % 2 != 0 || options.comm_ctas > sms / 2) {
    return refuse("comm_ctas = " + std::to_string(options.comm_ctas) + ", must be even, 0.." +
                  std::to_string(sms / 2));
  }
  return {};
}

/// An SM pushes 46 GB/s (H200, measured), the links of a GPU take 370: with more CTAs nothing arrives
/// earlier.
constexpr std::int32_t kPushingCtas = 8;
/// Nobody to push to: one CTA watches the host, and clusters come in pairs.
constexpr std::int32_t kWatchingCtas = 2;

}  // namespace

Result<AgGemmCudaPlan> AgGemmCudaPlan::make(const GemmShape& shape, const Topology& topology,
                                            std::uint32_t rank, std::int32_t sms,
                                            const AgGemmCudaOptions& options) {
  MK_RETURN_IF_ERROR(check(shape, topology, sms, options));
  AgGemmCudaPlan plan;
  const auto world = static_cast<std::int32_t>(topology.world());
  plan.comm_ctas = options.comm_ctas > 0 ? options.comm_ctas : world > 1 ? kPushingCtas : kWatchingCtas;
  const std::int32_t left = sms - plan.comm_ctas;
  const Sm90Plan product = options.tile ? plan_sm90(shape, left, *options.tile) : plan_sm90(shape, left);
  plan.tile = product.tile;

  plan.gather = {.rows = shape.m, .row_bytes = shape.k * 2, .world = world, .parts = plan.comm_ctas};
  plan.gather.chunk_rows = tile_rows(plan.tile);
  const std::int64_t block_rows = tile_rows(plan.tile) * tile_cluster(plan.tile);
  const auto blocks = [&](std::int64_t rows) {
    return static_cast<std::int32_t>(ceil_div(rows, block_rows));
  };
  const auto me = static_cast<std::int32_t>(rank);
  plan.steps = {me, world, blocks(plan.gather.rows_of(me)), blocks(plan.gather.max_rows())};
  plan.raster = {plan.steps.steps(), product.raster.columns, product.raster.band};
  const std::int32_t cluster = tile_cluster(plan.tile);
  plan.compute_ctas = std::min(plan.raster.tiles(), left / cluster) * cluster;
  return plan;
}

}  // namespace mkernel::kernels
