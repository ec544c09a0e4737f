#include "kernels/plan/tile_reduce_plan.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "kernels/plan/cuts.h"
#include "kernels/plan/gemm_shape.h"
#include "kernels/plan/push_sums_plan.h"
#include "kernels/plan/tile_reduce_time.h"

namespace mkernel::kernels {
namespace {

/// Whether owners share tiles of that size.
bool shares_tiles(const GemmShape& shape, const Topology& topology, const TileSize& tile) {
  const std::int64_t rows = ceil_div(shape.m, topology.world());
  return topology.world() > 1 && rows <= tile.rows && tile.rows <= kMostSharedRows;
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

/// The tiles of `product` where owners share them.
SharedTiles shared_tiles(const PushReducePlan& reduce, const Sm90Plan& product) {
  SharedTiles shared{.world = reduce.world};
  std::int64_t row_tiles = reduce.row_tiles();
  if (reduce.to_all) {
    shared.owners = reduce.world;
    shared.tile_rows = reduce.tile_rows;
  } else {
    shared.owners =
        std::min<std::int32_t>(reduce.world, reduce.tile_rows / static_cast<std::int32_t>(reduce.max_rows()));
    row_tiles = ceil_div(reduce.world, shared.owners);
  }
  const auto blocks = static_cast<std::int32_t>(ceil_div(row_tiles, product.tile.cluster));
  shared.raster = Raster(blocks, product.raster.columns(), product.raster.band());
  return shared;
}

/// Units of an owner's rows: of whole blocks of tiles, or, where owners share a tile, of the rows that the
/// one with most has of it.
ReduceUnits units_of(const TileReducePlan& plan) {
  const std::int32_t unit_rows = kReduceUnitElements / plan.tile.columns;
  ReduceUnits units{.raster = plan.reduce.to_all ? plan.shared.raster : plan.tiles.raster,
                    .per_block = plan.tile.block_rows() / unit_rows,
                    .per_tile = plan.tile.rows / unit_rows,
                    .unit_rows = unit_rows,
                    .others = plan.reduce.nodes() - 1};
  if (plan.shared.any() && plan.reduce.max_rows() <= plan.tile.rows)
    units.per_block = units.per_tile = static_cast<std::int32_t>(ceil_div(plan.reduce.max_rows(), unit_rows));
  return units;
}

/// Everything but the CTAs: the tiles of `product`, and what of them crosses where.
TileReducePlan layout_of(const GemmShape& shape, const Topology& topology, std::uint32_t rank,
                         const Sm90Plan& product, bool to_all = false) {
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
                 .tile_columns = plan.tile.columns,
                 .to_all = to_all};
  const std::int32_t block_rows = plan.tile.block_rows();
  const std::int32_t far_turns = world - sources;
  const Raster raster(static_cast<std::int32_t>(ceil_div(plan.reduce.max_rows(), block_rows)),
                      product.raster.columns(), band_of(product.raster.band(), std::max(far_turns, sources)));
  plan.tiles = {raster, far_turns, sources};
  if (shares_tiles(shape, topology, plan.tile)) plan.shared = shared_tiles(plan.reduce, product);
  plan.units = units_of(plan);
  const std::int32_t most_units = plan.units.packed(plan.units.units(), plan.reduce.max_rows());
  plan.partials = {.begin = plan.reduce.data_bytes(),
                   .nodes = nodes,
                   .units = most_units,
                   .chunk_units = choose_chunk_units(most_units)};
  return plan;
}

void set_ctas(TileReducePlan& plan, std::int32_t summing) {
  const std::int32_t clusters = (plan.machine.sms - summing) / plan.tile.cluster;
  plan.reduce_ctas = summing;
  plan.compute_ctas = std::min(plan.cluster_tiles(), clusters) * plan.tile.cluster;
}

/// Whether kernels mark the slots of a plan whose product takes `waves`.
bool marks_slots(OpKind kind, const TileReducePlan& plan, std::int64_t waves) {
  if (plan.reduce.to_all) return true;
  return waves == 1 && plan.reduce.nodes() == 1 && (kind != OpKind::kGemmAr || plan.marks_sums()) &&
         plan.reduce.marked_bytes() <= PushReducePlan::kMostMarkedBytes;
}

/// The plan of few rows, with tiles that owners share. Nearly all sums follow the product, when every warp
/// helps: CTAs that only sum must cost no wave of tiles.
TileReducePlan shared_plan(OpKind kind, const GemmShape& shape, const Topology& topology, std::uint32_t rank,
                           const Machine& machine, const TileReduceOptions& options, const TileSize& tile,
                           bool to_all) {
  const std::int32_t fewest = std::max(kFewestReduceCtas, options.reduce_ctas);
  const Sm90Plan product = plan_sm90(shape, machine.with_sms(machine.sms - fewest), tile);
  TileReducePlan plan = layout_of(shape, topology, rank, product, to_all);
  plan.machine = machine;
  const auto waves = [&](std::int32_t summing) { return plan.waves(summing); };
  plan.reduce.marked = marks_slots(kind, plan, waves(fewest));
  plan.reduce.marked_begin = whole_lines(plan.word_bytes());
  if (options.reduce_ctas > 0) {
    set_ctas(plan, options.reduce_ctas);
  } else {  // for marked slots none are needed beside the one that watches the host (ReadMarked)
    set_ctas(plan, plan.reduce.marked ? fewest : choose_sum_ctas(fewest, waves));
  }
  return plan;
}

Status check_to_all(OpKind kind, const GemmShape& shape, const Topology& topology,
                    const TileReduceOptions& options) {
  if (!options.to_all.value_or(false)) return {};
  return {StatusCode::kInvalidArgument,
          std::string(name_of(kind)) + ": to_all = true with m = " + std::to_string(shape.m) +
              ", n = " + std::to_string(shape.n) + " on " + std::to_string(topology.nodes()) + " nodes of " +
              std::to_string(topology.ranks_per_node()) +
              " ranks, must be false but for gemm_ar on one node of several ranks with at most " +
              std::to_string(kMostSharedRows) + " rows of m for each, in tiles that hold as many, and with " +
              std::to_string(PushReducePlan::kMostMarkedBytes >> 20) +
              " MiB at most for two times [m, n] of every rank"};
}

/// Of all tiles that owners can share, and of both ways of an all-reduce, what is expected to take least at
/// rank 0: ranks differ in what they send, and all must choose alike. Where memory bounds all of them, the
/// smallest tiles, of which no CTA is without rows.
std::optional<TileReducePlan> fastest_shared_plan(OpKind kind, const GemmShape& shape,
                                                  const Topology& topology, std::uint32_t rank,
                                                  const Machine& machine, const TileReduceOptions& options) {
  const std::vector<TileSize> tiles =
      options.tile ? std::vector<TileSize>{*options.tile}
                   : std::vector<TileSize>(std::rbegin(kSm90Tiles), std::rend(kSm90Tiles));
  std::optional<TileReducePlan> best;
  for (const TileSize& tile : tiles) {
    if (!shares_tiles(shape, topology, tile)) continue;
    for (const bool to_all : {false, true}) {
      if (to_all && (kind != OpKind::kGemmAr || topology.nodes() > 1)) continue;
      if (to_all != options.to_all.value_or(to_all)) continue;
      TileReducePlan plan = shared_plan(kind, shape, topology, 0, machine, options, tile, to_all);
      if (to_all && plan.reduce.marked_bytes() > PushReducePlan::kMostMarkedBytes) continue;
      if (!best || estimated_seconds(kind, shape, plan) < estimated_seconds(kind, shape, *best))
        best = std::move(plan);
    }
  }
  if (best && rank != 0)
    best = shared_plan(kind, shape, topology, rank, machine, options, best->tile, best->reduce.to_all);
  return best;
}

}  // namespace

Result<TileReducePlan> TileReducePlan::make(OpKind kind, const GemmShape& shape, const Topology& topology,
                                            std::uint32_t rank, const Machine& device,
                                            const TileReduceOptions& options) {
  const auto paced = with_paced_links(device, options.link_gbytes, name_of(kind));
  if (!paced.ok()) return paced.status();
  const Machine& machine = paced.value();
  const std::int32_t sms = machine.sms;
  MK_RETURN_IF_ERROR(check_on_machine(kind, shape, topology, options.reduce_ctas, machine));
  if (auto shared = fastest_shared_plan(kind, shape, topology, rank, machine, options)) return *shared;
  MK_RETURN_IF_ERROR(check_to_all(kind, shape, topology, options));
  const auto sources = static_cast<std::int32_t>(topology.ranks_per_node());
  const auto nodes = static_cast<std::int32_t>(topology.nodes());
  const std::int32_t fewest = nodes == 1 ? kFewestReduceCtas : feeding_ctas(kind, sms);
  const Machine most = machine.with_sms(sms - std::max(fewest, options.reduce_ctas));
  const double links = link_time(kind, shape, sources, most);
  const Sm90Plan product =
      options.tile ? plan_sm90(shape, most, *options.tile) : choose_product(shape, links, most);
  TileReducePlan plan = layout_of(shape, topology, rank, product);
  plan.machine = machine;
  const auto waves = [&](std::int32_t summing) { return plan.waves(summing); };
  if (options.reduce_ctas > 0) {
    plan.reduce_ctas = options.reduce_ctas;
  } else if (kind == OpKind::kGemmAr) {
    plan.reduce_ctas =
        std::max(fewest, choose_push_ctas(links, enough_push_ctas(shape, machine), sms, waves));
    if (plan.reduce_ctas > fewest) {  // another product may be the best beside them
      TileReduceOptions beside = options;
      beside.reduce_ctas = plan.reduce_ctas;
      return make(kind, shape, topology, rank, device, beside);
    }
  } else {
    plan.reduce_ctas = choose_sum_ctas(fewest, waves);
  }
  set_ctas(plan, plan.reduce_ctas);
  return plan;
}

TileReducePlan::Tile TileReducePlan::tile_at(std::int32_t index, std::int32_t in_cluster) const {
  if (shared.any()) return shared_tile_at(index, in_cluster);
  const OwnerTiles::Place place = tiles.place(index);
  const std::int32_t owner = owners[static_cast<std::size_t>(place.turn)];
  const std::int64_t begin = std::int64_t{place.block * tile.cluster + in_cluster} * tile.rows;
  const std::int64_t end = std::min(reduce.rows_of(owner), begin + tile.rows);
  Tile one{.first_row = reduce.first_row(owner) + begin, .column = place.column};
  if (begin < end) one.parts.push_back({place.turn, begin, end});
  one.rows = static_cast<std::int32_t>(std::max<std::int64_t>(0, end - begin));
  return one;
}

std::int32_t TileReducePlan::a_box_rows() const {
  if (!shared.any()) return kernels::a_box_rows(tile);
  std::int64_t most = 1;
  for (std::int32_t begin = 0; begin < reduce.world; begin += shared.owners) {
    const std::int32_t end = std::min(reduce.world, begin + shared.owners);
    most = std::max(most, reduce.to_all ? reduce.rows : reduce.first_row(end) - reduce.first_row(begin));
  }
  return kernels::a_box_rows(tile, Sm90Cluster::kStacked, most);
}

std::int64_t TileReducePlan::head_rows(std::int32_t owner) const {
  if (!shared.any() || reduce.to_all) return 0;
  const std::int64_t row = reduce.first_row(owner) - reduce.first_row(owner / shared.owners * shared.owners);
  return std::min(reduce.rows_of(owner), (64 - row % 64) % 64);
}

TileReducePlan::Tile TileReducePlan::shared_tile_at(std::int32_t index, std::int32_t in_cluster) const {
  const RasterPlace place = shared.raster.place(index);
  const SharedTiles::Rows rows = shared.rows(place.row * tile.cluster + in_cluster);
  Tile one{.first_row = reduce.first_row(rows.begin) + rows.skipped, .column = place.column};
  for (std::int32_t i = 0; i < rows.end - rows.begin; ++i) {
    const std::int32_t owner = rows.owner(i, rank());
    const std::int64_t end =
        std::min<std::int64_t>(reduce.rows_of(owner), std::int64_t{rows.skipped} + tile.rows);
    if (rows.skipped >= end) continue;
    one.parts.push_back({tiles.turn_of(owner, rank()), rows.skipped, end});
    one.rows = static_cast<std::int32_t>(
        std::max<std::int64_t>(one.rows, reduce.first_row(owner) + end - one.first_row));
  }
  return one;
}

std::int64_t TileReducePlan::waves(std::int32_t summing) const {
  const std::int32_t clusters = (machine.sms - summing) / tile.cluster;
  return clusters < 1 ? std::numeric_limits<std::int64_t>::max() : ceil_div(cluster_tiles(), clusters);
}

bool TileReducePlan::marks_sums() const {
  const PushSumsPlan sums{.world = reduce.world, .units = units.units()};
  return shared.any() && !reduce.to_all && reduce.nodes() == 1 &&
         sums.marked_bytes() <= PushReducePlan::kMostMarkedBytes;
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
