#include "kernels/ops/ag_gemm/plan.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/plan/cuts.h"
#include "kernels/plan/gemm_shape.h"

namespace mkernel::kernels {

namespace {

/// Nothing to store: one CTA watches the host, and clusters come in pairs.
constexpr std::int32_t kWatchingCtas = 2;

/// Parts along k of a block of rows: as many as let the product begin early, but no shorter share of a CTA
/// than is worth the fence in front of its count (over several nodes: the put that the chunk becomes), no
/// part of a row longer than a stage, and none shorter than two lines: the GEMM body begins a tile with two
/// steps before it writes what the tile before left in registers. Eight parts help where several neighbours
/// are pushed to; with one they cost more than they bring forward, over several nodes they were not measured.
std::int32_t choose_parts(const RowParts& row, std::int64_t block_rows, std::int32_t comm_ctas,
                          const Topology& topology) {
  constexpr std::int64_t kMostPartBytes = 16384;
  const bool one_node = topology.nodes() == 1;
  const std::int64_t most_parts = one_node && topology.world() > 2 ? 8 : 4;
  const std::int64_t fewest_share_bytes = one_node ? 48 << 10 : 96 << 10;
  const std::int64_t fewest = ceil_div(row.row_bytes, kMostPartBytes - RowParts::kLineBytes);
  const std::int64_t useful = block_rows * row.row_bytes / (comm_ctas * fewest_share_bytes);
  const std::int64_t most = std::max(fewest, std::int64_t{row.lines() / 2});
  return static_cast<std::int32_t>(std::clamp(std::min(useful, most_parts), fewest, most));
}

/// What is tried and compared; the rest of a plan follows.
struct Choice {
  TileSize tile;
  Sm90Cluster cluster;
  std::int32_t comm_ctas;
  std::int32_t band;
  std::int32_t tail_tiles;  ///< beyond what there is counts as what there is
  std::int32_t late_tiles;  ///< likewise, after the tail
};

/// Pushing clusters that compute too when they are through: all but the one that watches the host. Over
/// several nodes they have the wire to wait for.
std::int32_t late_clusters(const Topology& topology, const TileSize& tile, std::int32_t comm_ctas) {
  return topology.nodes() > 1 ? 0 : comm_ctas / tile.cluster - 1;
}

/// Whether sources share tiles of that size: each has a block of rows at most, and together they have fewer
/// blocks than each for itself.
bool shares_tiles(const GemmShape& shape, const Topology& topology, std::int64_t block_rows) {
  const std::int64_t world = topology.world();
  return shape.m <= kMostGatheredRows && ceil_div(shape.m, world) <= block_rows &&
         ceil_div(shape.m, block_rows) < std::min(shape.m, world);
}

AgGemmPlan plan_of(const GemmShape& shape, const Topology& topology, std::uint32_t rank,
                   const Machine& machine, const Choice& choice) {
  AgGemmPlan plan{
      .tile = choice.tile, .cluster = choice.cluster, .comm_ctas = choice.comm_ctas, .machine = machine};
  const auto world = static_cast<std::int32_t>(topology.world());
  const std::int32_t cluster = choice.tile.cluster;
  const std::int32_t block_rows = choice.tile.rows * cluster_rows(choice.tile, choice.cluster);
  plan.gather = {
      .rows = shape.m, .row = {.row_bytes = shape.k * 2}, .world = world, .block_rows = block_rows};
  plan.gather.shared = shares_tiles(shape, topology, block_rows);
  plan.gather.row.parts = choose_parts(
      plan.gather.row, plan.gather.shared ? plan.gather.max_rows() : block_rows, choice.comm_ctas, topology);
  plan.gather.shares = choice.comm_ctas;
  std::vector<std::int32_t> blocks_of;
  for (std::int32_t source = 0; source < world; ++source)
    blocks_of.push_back(static_cast<std::int32_t>(ceil_div(plan.gather.rows_of(source), block_rows)));
  plan.steps = ArrivalSteps::of(topology, rank, blocks_of);
  plan.columns = ProductColumns::of(shape, choice.tile.columns * cluster_columns(choice.cluster));
  const std::int32_t row_blocks =
      plan.gather.shared ? static_cast<std::int32_t>(ceil_div(shape.m, block_rows)) : plan.steps.steps();
  plan.assignment.raster = Raster(row_blocks, plan.columns.tiles, choice.band);
  const std::int32_t tiles = plan.assignment.raster.tiles();
  const std::int32_t tail = std::min(tiles, choice.tail_tiles);
  plan.assignment.late_clusters = late_clusters(topology, choice.tile, choice.comm_ctas);
  plan.assignment.late = plan.assignment.late_clusters == 0 ? 0 : std::min(tiles - tail, choice.late_tiles);
  plan.assignment.whole = tiles - tail - plan.assignment.late;
  const std::int32_t pieces = plan.assignment.whole + tail * tail_parts(choice.tile);
  plan.compute_ctas = std::min(std::max(1, pieces), (machine.sms - choice.comm_ctas) / cluster) * cluster;
  return plan;
}

/// Of `tiles` what is left over after whole turns of all clusters; the same and a turn of narrow tiles; only
/// that turn; those of the last two blocks of every neighbour, which is what counts where rows come more
/// slowly than they are multiplied.
std::vector<std::int32_t> tails(const AgGemmPlan& plan, std::int32_t tiles, std::int32_t clusters) {
  if (!has_tail(plan.tile) || tiles <= 0) return {0};
  const std::int32_t left = tiles % clusters, turn = clusters / tail_parts(plan.tile);
  return {0, left, left + turn, turn, 2 * plan.steps.near * plan.assignment.raster.columns()};
}

/// Heights of bands that are nearly equal, none of them above `tallest`: as few bands as there can be, twice
/// as many each time; and the highest with which the rows of one of `world` ranks fill whole bands.
std::vector<std::int32_t> band_heights(std::int32_t rows, std::int32_t tallest, std::int32_t world) {
  const auto height = [](std::int64_t all, std::int64_t count) {
    return static_cast<std::int32_t>(ceil_div(all, count));
  };
  std::vector<std::int32_t> heights;
  for (std::int64_t count = ceil_div(rows, tallest); heights.empty() || heights.back() > 1; count *= 2)
    heights.push_back(height(rows, count));
  const std::int64_t own = ceil_div(rows, world);
  const std::int32_t of_own = height(own, ceil_div(own, tallest));
  if (std::find(heights.begin(), heights.end(), of_own) == heights.end()) heights.push_back(of_own);
  return heights;
}

/// CTAs that push. They leave most to the product, and are enough where few_suffice().
constexpr std::int32_t kFewestPushing = 4;

/// How many CTAs may push: those that were measured to be of use, on a small GPU at most half of its SMs.
std::vector<std::int32_t> pushing_ctas(const Topology& topology, std::int32_t sms, bool few_rows) {
  std::vector<std::int32_t> counts;
  for (const std::int32_t count : {kFewestPushing, 8, 6, 10, 12, 16}) {
    if (count == kFewestPushing && topology.nodes() > 1 && !few_rows) continue;
    if (topology.world() > 1 && count <= sms / 2) counts.push_back(count);
  }
  return counts.empty() ? std::vector{kWatchingCtas} : counts;
}

/// None; as few as save the other clusters whole turns, since late clusters may be later than they are
/// expected to be; and as many as every late cluster has time for while the others compute, or one less each.
std::vector<std::int32_t> late_tiles(const GemmShape& shape, const AgGemmPlan& without) {
  const std::int32_t late_clusters = without.assignment.late_clusters;
  const std::int32_t each = late_clusters > 0 ? tiles_after_pushing(shape, without) : 0;
  const std::int32_t clusters = without.compute_ctas / without.tile.cluster;
  const std::int32_t tiles = without.assignment.raster.tiles();
  const auto few = [&](std::int32_t most) {
    const auto turns = static_cast<std::int32_t>(ceil_div(tiles - most * late_clusters, clusters));
    return std::max(0, tiles - turns * clusters);
  };
  std::vector<std::int32_t> counts;
  for (const std::int32_t count :
       {0, few(each), few(each - 1), each * late_clusters, (each - 1) * late_clusters}) {
    if (count >= 0 && std::find(counts.begin(), counts.end(), count) == counts.end()) counts.push_back(count);
  }
  return counts;
}

/// The product whose tiles are those of all products together, as far as their order and their number matter.
GemmShape as_one_product(GemmShape shape) {
  for (std::int64_t& more : shape.more_n) shape.n += std::exchange(more, 0);
  return shape;
}

/// What products are computed in. Side by side, both CTAs of a cluster have the rows that stacked ones would
/// leave to the first alone: of use where all rows are in one block, and measured on one node.
std::vector<std::pair<TileSize, Sm90Cluster>> products(const GemmShape& shape, const Topology& topology,
                                                       const AgGemmOptions& options) {
  if (options.tile) return {{*options.tile, options.cluster}};
  std::vector<std::pair<TileSize, Sm90Cluster>> all;
  for (const TileSize tile : kSm90Tiles) all.emplace_back(tile, Sm90Cluster::kStacked);
  const TileSize wide = Sm90Tile::k128x256;
  if (topology.nodes() == 1 && shape.m <= wide.rows) all.emplace_back(wide, Sm90Cluster::kSideBySide);
  return all;
}

/// Whether the fewest pushing CTAs are enough: for few rows, for one neighbour, and where pushes have time.
bool few_suffice(const GemmShape& shape, const AgGemmPlan& plan) {
  return shape.m <= kMostGatheredRows || plan.gather.world <= 2 || pushes_in_time(shape, plan);
}

/// The plan that is estimated to end first on a rank that begins before the others, where clusters that wait
/// for rows fall behind those that do not, and the launch ends with the last; of two that are nearly as fast
/// the one tried before, so first come those that are best for L2 and leave most SMs to the product.
AgGemmPlan choose(const GemmShape& shape, const Topology& topology, std::uint32_t rank,
                  const Machine& machine, const AgGemmOptions& options) {
  const std::int32_t sms = machine.sms;
  const GemmShape one = as_one_product(shape);
  const std::vector<std::int32_t> comm_ctas = options.comm_ctas > 0
                                                  ? std::vector{options.comm_ctas}
                                                  : pushing_ctas(topology, sms, shape.m <= kMostGatheredRows);
  std::optional<AgGemmPlan> best;
  double best_seconds = 0;
  const auto consider = [&](const Choice& choice) {
    // A rank's own number must not decide: all ranks need the same chunks.
    const AgGemmPlan of_first = plan_of(shape, topology, 0, machine, choice);
    if (choice.comm_ctas == kFewestPushing && comm_ctas.size() > 1 && !few_suffice(shape, of_first)) return;
    constexpr double kClearly = 0.99;
    if (best && least_seconds(shape, of_first) > kClearly * best_seconds) return;
    const double seconds = estimated_seconds(shape, of_first, machine.rank_skew);
    if (best && seconds > kClearly * best_seconds) return;
    best = plan_of(shape, topology, rank, machine, choice);
    best_seconds = seconds;
  };
  for (const std::int32_t comm : comm_ctas) {
    for (const auto& [tile, cluster] : products(shape, topology, options)) {
      // A wire makes slow tiles look as good as fast ones, which leave more power and memory to others.
      if (!options.tile && topology.nodes() > 1 && tile != plan_sm90(one, machine.with_sms(sms - comm)).tile)
        continue;
      const Sm90Plan product = plan_sm90(one, machine.with_sms(sms - comm), tile, cluster);
      const std::int32_t clusters = (sms - comm) / tile.cluster;
      const std::int32_t tallest = product.raster.band();
      const AgGemmPlan without_late = plan_of(
          shape, topology, 0, machine, {tile, cluster, comm, tallest, options.tail_tiles.value_or(0), 0});
      const std::vector<std::int32_t> heights = band_heights(without_late.assignment.raster.rows(), tallest,
                                                             static_cast<std::int32_t>(topology.world()));
      const std::vector<std::int32_t> late_counts =
          options.late_tiles ? std::vector{*options.late_tiles} : late_tiles(shape, without_late);
      for (const std::int32_t late : late_counts) {
        const std::vector<std::int32_t> tail_tiles =
            options.tail_tiles ? std::vector{*options.tail_tiles}
                               : tails(without_late, without_late.assignment.raster.tiles() - late, clusters);
        for (const std::int32_t band : heights) {
          for (const std::int32_t tail : tail_tiles) consider({tile, cluster, comm, band, tail, late});
        }
      }
    }
  }
  return *best;
}

Status check_assignment(const AgGemmOptions& options) {
  if (options.cluster == Sm90Cluster::kSideBySide && options.tile != TileSize(Sm90Tile::k128x256)) {
    return {StatusCode::kInvalidArgument, "ag_gemm: cluster = side by side, must come with tile = 128x256"};
  }
  if (options.late_tiles && (*options.late_tiles < 0 || !options.tile)) {
    return {StatusCode::kInvalidArgument, "ag_gemm: late_tiles = " + std::to_string(*options.late_tiles) +
                                              ", must be at least 0 and come with a tile"};
  }
  if (!options.tail_tiles) return {};
  if (*options.tail_tiles >= 0 && options.tile && (has_tail(*options.tile) || *options.tail_tiles == 0))
    return {};
  return {StatusCode::kInvalidArgument,
          "ag_gemm: tail_tiles = " + std::to_string(*options.tail_tiles) +
              ", must be at least 0 and come with a tile that can be cut (0 with one that cannot)"};
}

}  // namespace

Result<AgGemmPlan> AgGemmPlan::make(const GemmShape& shape, const Topology& topology, std::uint32_t rank,
                                    const Machine& machine, const AgGemmOptions& options) {
  MK_RETURN_IF_ERROR(check_on_machine(OpKind::kAgGemm, shape, topology, options.comm_ctas, machine));
  MK_RETURN_IF_ERROR(check_assignment(options));
  if (!(options.nic_gbytes >= 0)) {
    return Status(StatusCode::kInvalidArgument,
                  "ag_gemm: nic_gbytes = " + std::to_string(options.nic_gbytes) + ", must be at least 0");
  }
  auto planned = with_paced_links(machine, options.link_gbytes, "ag_gemm");
  if (!planned.ok()) return planned.status();
  if (options.nic_gbytes > 0) planned->nic = options.nic_gbytes * 1e9;
  return choose(shape, topology, rank, *planned, options);
}

}  // namespace mkernel::kernels
