#include "kernels/ops/gemm_rs/cuda_plan.h"

#include <algorithm>
#include <string>

#include "kernels/ops/gemm_shape.h"
#include "kernels/schedule/tiles.h"

namespace mkernel::kernels {
namespace {

Status refuse(const std::string& what) {
  return {StatusCode::kInvalidArgument, "gemm_rs: " + what};
}

Status check(const GemmShape& shape, const Topology& topology, std::int32_t sms,
             const GemmRsCudaOptions& options) {
  MK_RETURN_IF_ERROR(check_shape(OpKind::kGemmRs, shape));
  if (topology.nodes() != 1) {
    return {StatusCode::kUnimplemented,
            "gemm_rs: the cuda executor runs on one node, the group has " + std::to_string(topology.nodes())};
  }
  if (topology.world() > kMaxGemmRsOwners) {
    return refuse("world = " + std::to_string(topology.world()) + ", must be 1.." +
                  std::to_string(kMaxGemmRsOwners) + " on the cuda executor");
  }
  for (const auto& [name, value] : {std::pair{"n", shape.n}, std::pair{"k", shape.k}}) {
    if (value % 8 != 0) {
      return refuse(std::string(name) + " = " + std::to_string(value) +
                    ", must be a multiple of 8 on the cuda executor (TMA moves rows of whole 16 bytes)");
    }
  }
  if (options.reduce_ctas < 0 || options.reduce_ctas % 2 != 0 || options.reduce_ctas > sms / 2) {
    return refuse("reduce_ctas = " + std::to_string(options.reduce_ctas) + ", must be even, 0.." +
                  std::to_string(sms / 2));
  }
  return {};
}

/// Whether the links take longer than the tensor cores: 354 GB/s of stores leave a GPU, an SM computes 6e12
/// operations a second (both measured).
bool wire_bound(const GemmShape& shape, std::int32_t world, std::int32_t sms) {
  const double pushed = 2.0 * (world - 1) / world;  // bytes of an element of the product
  return pushed / 354e9 > 2.0 * static_cast<double>(shape.k) / (6e12 * sms);
}

/// The fastest product, but where the links are slower than it the first tile must come early, and those
/// after it must not come in bursts.
Sm90Plan choose_product(const GemmShape& shape, std::int32_t world, std::int32_t sms) {
  const Sm90Plan fastest = plan_sm90(shape, sms);
  const bool large = tile_rows(fastest.tile) * tile_columns(fastest.tile) > 128 * 128;
  return large && wire_bound(shape, world, sms) ? plan_sm90(shape, sms, Sm90Tile::k128x128) : fastest;
}

constexpr std::int32_t kFewestReduceCtas = 2;  // one watches the host, and clusters come in pairs
constexpr std::int32_t kMostReduceCtas = 8;    // read as fast as tiles can come

/// As many as cost no further wave of tiles.
std::int32_t choose_reduce_ctas(std::int32_t tiles, std::int32_t cluster, std::int32_t sms) {
  const auto waves = [&](std::int32_t reduce_ctas) { return ceil_div(tiles, (sms - reduce_ctas) / cluster); };
  std::int32_t chosen = kFewestReduceCtas;
  while (chosen < kMostReduceCtas && waves(chosen + 2) == waves(kFewestReduceCtas)) chosen += 2;
  return chosen;
}

/// A band holds whole turns of the owners, so that the sums of its columns become complete together.
std::int32_t whole_turns(std::int32_t band, std::int32_t world) {
  return std::max(1, (band + world / 2) / world) * world;
}

}  // namespace

Result<GemmRsCudaPlan> GemmRsCudaPlan::make(const GemmShape& shape, const Topology& topology,
                                            std::uint32_t rank, std::int32_t sms,
                                            const GemmRsCudaOptions& options) {
  MK_RETURN_IF_ERROR(check(shape, topology, sms, options));
  GemmRsCudaPlan plan;
  const auto me = static_cast<std::int32_t>(rank);
  const auto world = static_cast<std::int32_t>(topology.world());
  const std::int32_t most = sms - std::max(kFewestReduceCtas, options.reduce_ctas);
  const Sm90Plan product =
      options.tile ? plan_sm90(shape, most, *options.tile) : choose_product(shape, world, most);
  plan.tile = product.tile;
  const std::int32_t cluster = tile_cluster(plan.tile);

  plan.reduce = {.rows = shape.m,
                 .columns = shape.n,
                 .world = world,
                 .tile_rows = tile_rows(plan.tile),
                 .tile_columns = tile_columns(plan.tile)};
  const std::int32_t block_rows = tile_rows(plan.tile) * cluster;
  const auto blocks = [&](std::int64_t rows) {
    return static_cast<std::int32_t>(ceil_div(rows, block_rows));
  };
  const std::int32_t columns = product.raster.columns;
  plan.steps = {me, world, blocks(plan.reduce.max_rows())};
  const std::int32_t band = whole_turns(product.raster.band, world);
  plan.raster = {plan.steps.steps(), columns, band};
  plan.units = {.raster = {blocks(plan.reduce.rows_of(me)), columns, band / world},
                .block_rows = block_rows,
                .tile_rows = tile_rows(plan.tile),
                .unit_rows = kReduceUnitElements / tile_columns(plan.tile)};

  plan.reduce_ctas =
      options.reduce_ctas > 0 ? options.reduce_ctas : choose_reduce_ctas(plan.raster.tiles(), cluster, sms);
  plan.compute_ctas = std::min(plan.raster.tiles(), (sms - plan.reduce_ctas) / cluster) * cluster;
  return plan;
}

}  // namespace mkernel::kernels
