#include "kernels/ops/exchange/tile_reduce_plan.h"

#include <algorithm>

#include "kernels/ops/gemm_shape.h"
#include "kernels/schedule/tiles.h"

namespace mkernel::kernels {
namespace {

/// How long the links need for what a rank pushes, the product's time being 1: 354 GB/s of stores leave a
/// GPU, an SM computes 6e12 operations a second (both measured).
double link_time(OpKind kind, const GemmShape& shape, std::int32_t world, std::int32_t sms) {
  const double crossings = kind == OpKind::kGemmAr ? 2 : 1;     // partials; finished sums as well
  const double pushed = crossings * 2.0 * (world - 1) / world;  // bytes of an element of the product
  const double product = 2.0 * static_cast<double>(shape.k) / (6e12 * sms);  // seconds for one
  return pushed / 354e9 / product;
}

/// The fastest product, but where the links are slower than it the first tile must come early, and those
/// after it must not come in bursts.
Sm90Plan choose_product(const GemmShape& shape, double links, std::int32_t sms) {
  const Sm90Plan fastest = plan_sm90(shape, sms);
  const bool large = tile_rows(fastest.tile) * tile_columns(fastest.tile) > 128 * 128;
  return large && links > 1 ? plan_sm90(shape, sms, Sm90Tile::k128x128) : fastest;
}

constexpr std::int32_t kFewestReduceCtas = 2;  // one watches the host, and clusters come in pairs

/// When sums stay here: as many CTAs as cost no further wave of tiles, `waves(CTAs that sum)`.
template <class Waves>
std::int32_t choose_sum_ctas(const Waves& waves) {
  constexpr std::int32_t kMost = 8;  // read as fast as tiles can come
  std::int32_t chosen = kFewestReduceCtas;
  while (chosen < kMost && waves(chosen + 2) == waves(kFewestReduceCtas)) chosen += 2;
  return chosen;
}

/// When sums are pushed on: a sum takes several times as long, most of it waiting for the links. Sums that
/// are not made under the product follow it, all of them when there are no CTAs for them, none from
/// 20 x links CTAs on (measured: 16384^2 x 4096 on 4 ranks, links = 0.8).
template <class Waves>
std::int32_t choose_push_ctas(double links, std::int32_t sms, const Waves& waves) {
  const std::int32_t most = std::min(24, sms / 4 / 2 * 2);
  // Tiles alone keep the links busy until the product is over, and then every warp helps.
  if (links > 2) return 2 * kFewestReduceCtas;
  // The product waits for the links anyway.
  if (links > 1) return most;
  const auto time = [&](std::int32_t ctas) {
    const double product = static_cast<double>(waves(ctas)) / waves(kFewestReduceCtas);
    return product + links / 2 * std::max(0.0, 1 - ctas / (20 * links + 1e-9));
  };
  std::int32_t best = kFewestReduceCtas;
  for (std::int32_t ctas = best + 2; ctas <= most; ctas += 2) {
    if (time(ctas) < time(best)) best = ctas;
  }
  return best;
}

/// A band holds whole turns of the owners, so that the sums of its columns become complete together.
std::int32_t whole_turns(std::int32_t band, std::int32_t world) {
  return std::max(1, (band + world / 2) / world) * world;
}

}  // namespace

Result<TileReducePlan> TileReducePlan::make(OpKind kind, const GemmShape& shape, const Topology& topology,
                                            std::uint32_t rank, std::int32_t sms,
                                            const TileReduceOptions& options) {
  MK_RETURN_IF_ERROR(check_one_node(kind, topology));
  MK_RETURN_IF_ERROR(
      check_on_gpu(kind, shape, topology, kMaxReduceOwners, "reduce_ctas", options.reduce_ctas, sms));
  TileReducePlan plan;
  const auto me = static_cast<std::int32_t>(rank);
  const auto world = static_cast<std::int32_t>(topology.world());
  const std::int32_t most = sms - std::max(kFewestReduceCtas, options.reduce_ctas);
  const double links = link_time(kind, shape, world, most);
  const Sm90Plan product =
      options.tile ? plan_sm90(shape, most, *options.tile) : choose_product(shape, links, most);
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
  plan.units = {.raster = {plan.steps.blocks, columns, band / world},
                .block_rows = block_rows,
                .tile_rows = tile_rows(plan.tile),
                .unit_rows = kReduceUnitElements / tile_columns(plan.tile)};

  const auto waves = [&](std::int32_t reduce_ctas) {
    return ceil_div(plan.raster.tiles(), (sms - reduce_ctas) / cluster);
  };
  plan.reduce_ctas = options.reduce_ctas > 0   ? options.reduce_ctas
                     : kind == OpKind::kGemmAr ? choose_push_ctas(links, sms, waves)
                                               : choose_sum_ctas(waves);
  plan.compute_ctas = std::min(plan.raster.tiles(), (sms - plan.reduce_ctas) / cluster) * cluster;
  return plan;
}

}  // namespace mkernel::kernels
