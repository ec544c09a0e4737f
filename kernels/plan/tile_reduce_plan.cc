#include "kernels/plan/tile_reduce_plan.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "kernels/plan/cuts.h"
#include "kernels/plan/gemm_shape.h"

namespace mkernel::kernels {
namespace {

/// Of one element of the product.
double product_seconds(const GemmShape& shape, const Machine& machine) {
  return 2.0 * static_cast<double>(shape.k) / (machine.product_operations * machine.sms);
}

/// How often an element crosses the links or the wire: as a partial; of GEMM+AR as a finished sum too.
double crossings(OpKind kind) {
  return kind == OpKind::kGemmAr ? 2 : 1;
}

/// Seconds of the node's links for what a rank pushes of an element of the product.
double link_seconds(OpKind kind, std::int32_t sources, const Machine& machine) {
  return crossings(kind) * 2.0 * (sources - 1) / sources / machine.links_store;
}

/// How long the links of the node need for what a rank pushes, the product's time being 1.
double link_time(OpKind kind, const GemmShape& shape, std::int32_t sources, const Machine& machine) {
  return link_seconds(kind, sources, machine) / product_seconds(shape, machine);
}

/// The fastest product, but where the links are slower than it the first tile must come early, and those
/// after it must not come in bursts.
Sm90Plan choose_product(const GemmShape& shape, double links, const Machine& machine) {
  const Sm90Plan fastest = plan_sm90(shape, machine);
  const bool large = fastest.tile.rows * fastest.tile.columns > 128 * 128;
  return large && links > 1 ? plan_sm90(shape, machine, Sm90Tile::k128x128) : fastest;
}

constexpr std::int32_t kFewestReduceCtas = 2;  // one watches the host, and clusters come in pairs
/// Over several nodes the wire waits for sums from the first tile on, and all the multiplying warps have to
/// offer is too late for it: a CTA stages about 6 GB/s (measured), and a wire of 50 GB/s wants them all
/// along. Of GEMM+AR only two warps of three sum, and finished sums travel too.
std::int32_t feeding_ctas(OpKind kind, std::int32_t sms) {
  return std::max(kFewestReduceCtas, std::min(kind == OpKind::kGemmAr ? 24 : 12, sms / 4 / 2 * 2));
}

/// When sums stay here: as many CTAs from `fewest` on as cost no further wave of tiles, `waves(CTAs that
/// sum)`.
template <class Waves>
std::int32_t choose_sum_ctas(std::int32_t fewest, const Waves& waves) {
  constexpr std::int32_t kMost = 8;  // read as fast as tiles can come
  std::int32_t chosen = fewest;
  while (chosen < kMost && waves(chosen + 2) == waves(fewest)) chosen += 2;
  return chosen;
}

/// When sums are pushed on: how many CTAs make them all while the product is computed. Every element of c is
/// read from all sources, pushed to all but one and written: 4 bytes an element of the product whatever the
/// ranks (measured: 16384^2 x 4096 on 2 and 4 ranks).
double enough_push_ctas(const GemmShape& shape, const Machine& machine) {
  return 4.0 / product_seconds(shape, machine) / machine.sum_bytes;
}

/// When sums are pushed on: sums that are not made under the product follow it, all of them when there are no
/// CTAs for them, none from enough_push_ctas() on.
template <class Waves>
std::int32_t choose_push_ctas(double links, double enough, std::int32_t sms, const Waves& waves) {
  const std::int32_t most = std::max(kFewestReduceCtas, std::min(24, sms / 4 / 2 * 2));
  // Tiles alone keep the links busy until the product is over, and then every warp helps.
  if (links > 2) return std::min(2 * kFewestReduceCtas, most);
  // The product waits for the links anyway.
  if (links > 1) return most;
  const auto time = [&](std::int32_t ctas) {
    const double product = static_cast<double>(waves(ctas)) / waves(kFewestReduceCtas);
    return product + links / 2 * std::max(0.0, 1 - ctas / enough);
  };
  std::int32_t best = kFewestReduceCtas;
  for (std::int32_t ctas = best + 2; ctas <= most; ctas += 2) {
    if (time(ctas) < time(best)) best = ctas;
  }
  return best;
}

/// Blocks of an owner in a band: all turns of them together make up the band of the plain product.
std::int32_t band_of(std::int32_t product_band, std::int32_t turns) {
  return std::max(1, (product_band + turns / 2) / turns);
}

/// Units of a chunk: large enough for the copy engines and for EFA (kChunkBytes), but no more than a 32nd of
/// what an owner gets, so that the first one leaves early and the last one is over soon; 64 KiB at least.
std::int32_t choose_chunk_units(std::int32_t units) {
  constexpr auto kMost = static_cast<std::int32_t>(kChunkBytes / PutPartialsPlan::kUnitBytes);
  return std::clamp(units / 32, kMost / 16, kMost);
}

/// By turn, as OwnerTiles counts.
std::vector<std::int32_t> owners_by_turn(const Topology& topology, std::uint32_t rank) {
  std::vector<std::int32_t> owners;
  for (std::uint32_t node = 1; node <= topology.nodes(); ++node) {
    for (std::uint32_t local = 1; local <= topology.ranks_per_node(); ++local) {
      owners.push_back(static_cast<std::int32_t>(
          topology.rank_at((topology.node_of(rank) + node) % topology.nodes(),
                           (topology.local_of(rank) + local) % topology.ranks_per_node())));
    }
  }
  return owners;
}

/// Everything but the CTAs: the tiles of `product`, cut per owner, and what of them crosses where.
TileReducePlan layout_of(const GemmShape& shape, const Topology& topology, std::uint32_t rank,
                         const Sm90Plan& product) {
  const auto world = static_cast<std::int32_t>(topology.world());
  const auto sources = static_cast<std::int32_t>(topology.ranks_per_node());
  const auto nodes = static_cast<std::int32_t>(topology.nodes());
  TileReducePlan plan;
  plan.tile = product.tile;
  plan.owners = owners_by_turn(topology, rank);
  plan.reduce = {.rows = shape.m,
                 .columns = shape.n,
                 .world = world,
                 .sources = sources,
                 .tile_rows = plan.tile.rows,
                 .tile_columns = plan.tile.columns};
  const std::int32_t block_rows = plan.tile.block_rows();
  const std::int32_t far_turns = world - sources;
  const Raster raster(static_cast<std::int32_t>(ceil_div(plan.reduce.max_rows(), block_rows)),
                      product.raster.columns(), band_of(product.raster.band(), std::max(far_turns, sources)));
  plan.tiles = {raster, far_turns, sources};
  const std::int32_t unit_rows = kReduceUnitElements / plan.tile.columns;
  plan.units = {.raster = raster,
                .per_block = block_rows / unit_rows,
                .per_tile = plan.tile.rows / unit_rows,
                .unit_rows = unit_rows,
                .others = nodes - 1};
  const std::int32_t most_units = plan.units.packed(plan.units.units(), plan.reduce.max_rows());
  plan.partials = {.begin = plan.reduce.data_bytes(),
                   .nodes = nodes,
                   .units = most_units,
                   .chunk_units = choose_chunk_units(most_units)};
  return plan;
}

}  // namespace

Result<TileReducePlan> TileReducePlan::make(OpKind kind, const GemmShape& shape, const Topology& topology,
                                            std::uint32_t rank, const Machine& machine,
                                            const TileReduceOptions& options) {
  const std::int32_t sms = machine.sms;
  MK_RETURN_IF_ERROR(check_on_machine(kind, shape, topology, options.reduce_ctas, machine));
  const auto sources = static_cast<std::int32_t>(topology.ranks_per_node());
  const auto nodes = static_cast<std::int32_t>(topology.nodes());
  const std::int32_t fewest = nodes == 1 ? kFewestReduceCtas : feeding_ctas(kind, sms);
  const Machine most = machine.with_sms(sms - std::max(fewest, options.reduce_ctas));
  const double links = link_time(kind, shape, sources, most);
  const Sm90Plan product =
      options.tile ? plan_sm90(shape, most, *options.tile) : choose_product(shape, links, most);
  TileReducePlan plan = layout_of(shape, topology, rank, product);
  plan.machine = machine;
  const std::int32_t cluster = plan.tile.cluster;

  const auto waves = [&](std::int32_t summing) -> std::int64_t {
    const std::int32_t clusters = (sms - summing) / cluster;
    return clusters < 1 ? std::numeric_limits<std::int64_t>::max() : ceil_div(plan.tiles.tiles(), clusters);
  };
  if (options.reduce_ctas > 0) {
    plan.reduce_ctas = options.reduce_ctas;
  } else if (kind == OpKind::kGemmAr) {
    plan.reduce_ctas =
        std::max(fewest, choose_push_ctas(links, enough_push_ctas(shape, machine), sms, waves));
    if (plan.reduce_ctas > fewest) {  // another product may be the best beside them
      TileReduceOptions beside = options;
      beside.reduce_ctas = plan.reduce_ctas;
      return make(kind, shape, topology, rank, machine, beside);
    }
  } else {
    plan.reduce_ctas = choose_sum_ctas(fewest, waves);
  }
  plan.compute_ctas = std::min(plan.tiles.tiles(), (sms - plan.reduce_ctas) / cluster) * cluster;
  return plan;
}

double estimated_seconds(OpKind kind, const GemmShape& shape, const TileReducePlan& plan) {
  const Machine& machine = plan.machine;
  const double tile = tile_cycles(machine, shape.k, plan.tile, plan.tile.columns) / machine.clock;
  const auto waves = static_cast<double>(ceil_div(plan.tiles.tiles(), plan.compute_ctas / plan.tile.cluster));
  const double product = waves * tile;
  if (plan.tiles.turns() == 1) return machine.launch + product + machine.last_stores;
  const double elements = static_cast<double>(shape.m) * static_cast<double>(shape.n);
  const double links = elements * link_seconds(kind, plan.reduce.sources, machine);
  const double wire = crossings(kind) * static_cast<double>(plan.wire_bytes()) / machine.nic;
  const double arrives = crossings(kind) * (machine.push_latency + (wire > 0 ? machine.wire_latency : 0));
  return machine.launch + std::max(product, tile + std::max(links, wire)) + arrives + machine.last_stores;
}

std::vector<std::int32_t> TileReducePlan::rail_peers() const {
  std::vector<std::int32_t> peers;
  for (std::int32_t turn = tiles.node_turns - 1; turn < tiles.far_turns; turn += tiles.node_turns)
    peers.push_back(owners[static_cast<std::size_t>(turn)]);
  return peers;
}

std::uint64_t TileReducePlan::wire_bytes() const {
  std::uint64_t bytes = 0;
  for (const std::int32_t peer : rail_peers()) bytes += packed_units(peer) * PutPartialsPlan::kUnitBytes;
  return bytes;
}

}  // namespace mkernel::kernels
