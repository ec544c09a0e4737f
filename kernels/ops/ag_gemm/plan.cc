#include "kernels/ops/ag_gemm/plan.h"

#include <algorithm>
#include <cmath>
#include <iterator>
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

/// How many CTAs may push: those that were measured to be of use, on a small GPU at most half of its SMs. Few
/// are enough where the product is long and rows go to one neighbour, and where there are few rows.
std::vector<std::int32_t> pushing_ctas(const Topology& topology, std::int32_t sms, bool few_rows) {
  const bool one_neighbour = topology.nodes() == 1 && topology.world() == 2;
  std::vector<std::int32_t> counts;
  for (const std::int32_t count : {4, 8, 6, 10, 12, 16}) {
    if (count == 4 && !one_neighbour && !few_rows) continue;
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

/// The plan that is estimated to end first; of two that are nearly as fast the one tried before, so first
/// come those that are best for L2 and leave most SMs to the product.
AgGemmPlan choose(const GemmShape& shape, const Topology& topology, std::uint32_t rank,
                  const Machine& machine, const AgGemmOptions& options) {
  const std::int32_t sms = machine.sms;
  const GemmShape one = as_one_product(shape);
  std::optional<AgGemmPlan> best;
  double best_seconds = 0;
  const auto consider = [&](const Choice& choice) {
    // A rank's own number must not decide: all ranks need the same chunks.
    const double seconds = estimated_seconds(shape, plan_of(shape, topology, 0, machine, choice));
    constexpr double kClearly = 0.99;
    if (best && seconds > kClearly * best_seconds) return;
    best = plan_of(shape, topology, rank, machine, choice);
    best_seconds = seconds;
  };
  const std::vector<std::int32_t> comm_ctas = options.comm_ctas > 0
                                                  ? std::vector{options.comm_ctas}
                                                  : pushing_ctas(topology, sms, shape.m <= kMostGatheredRows);
  const std::vector<TileSize> tiles =
      options.tile ? std::vector{*options.tile}
                   : std::vector<TileSize>(std::begin(kSm90Tiles), std::end(kSm90Tiles));
  for (const std::int32_t comm : comm_ctas) {
    for (const TileSize& tile : tiles) {
      // A wire makes slow tiles look as good as fast ones, which leave more power and memory to others.
      if (!options.tile && topology.nodes() > 1 && tile != plan_sm90(one, machine.with_sms(sms - comm)).tile)
        continue;
      const Sm90Plan product = plan_sm90(one, machine.with_sms(sms - comm), tile, options.cluster);
      const std::int32_t clusters = (sms - comm) / tile.cluster;
      const std::int32_t tallest = product.raster.band();
      const AgGemmPlan without_late =
          plan_of(shape, topology, 0, machine,
                  {tile, options.cluster, comm, tallest, options.tail_tiles.value_or(0), 0});
      const std::vector<std::int32_t> late_counts =
          options.late_tiles ? std::vector{*options.late_tiles} : late_tiles(shape, without_late);
      for (const std::int32_t late : late_counts) {
        const std::vector<std::int32_t> tail_tiles =
            options.tail_tiles ? std::vector{*options.tail_tiles}
                               : tails(without_late, without_late.assignment.raster.tiles() - late, clusters);
        for (std::int32_t band = tallest; band >= 1; band /= 2) {
          for (const std::int32_t tail : tail_tiles)
            consider({tile, options.cluster, comm, band, tail, late});
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

constexpr double kPieceBytes = 16384;  ///< that one load of whole rows takes

/// For `bytes` of a chunk on their way from memory into the pushing CTAs: what counts when they go to few
/// places.
double load_seconds(const AgGemmPlan& plan, double bytes) {
  if (plan.rails() > 0) return bytes / (plan.comm_ctas * plan.machine.prepare_bytes);
  const double loads =
      plan.gather.row.parts > 1 ? static_cast<double>(plan.gather.block_rows) : bytes / kPieceBytes;
  return (bytes / plan.machine.load_bytes + loads * plan.machine.load_seconds) / plan.comm_ctas;
}

/// Seconds from chunk to chunk, and to a tile.
struct Pace {
  const AgGemmPlan& plan;
  double own;   ///< stored at the other ranks of the node, and where it is put from
  double wire;  ///< put to one rail peer
  double far;   ///< that came from another node, stored at the other ranks

  /// When part `part` of the rows of a row block is there; of one that sources share, when the last of all
  /// sources is.
  double arrival(std::int32_t row, std::int32_t part) const {
    if (!plan.gather.shared) return arrival(plan.steps.place(row), part);
    double last = 0;
    for (std::int32_t step = 0; step < plan.steps.steps(); ++step)
      last = std::max(last, arrival(plan.steps.place(step), part));
    return last;
  }
  /// When part `part` of a source's block is there.
  double arrival(const ArrivalSteps::Place& step, std::int32_t part) const {
    if (step.source == plan.steps.rank && !plan.gather.shared) return 0;
    const double chunk = filled(step);
    const double before = step.block * plan.gather.row.parts + part * chunk, with = before + chunk;
    if (step.turn <= plan.steps.near) return plan.machine.launch + plan.machine.push_latency + with * own;
    const std::int32_t nodes_back = step.turn / (plan.steps.near + 1) - 1;
    const double puts = before * plan.rails() + nodes_back;  // before it, on either end of the wire
    const double sent = std::max(with * own + (nodes_back + 1) * wire, own + (puts + 1) * wire);
    const double pushed = own_chunks() * own + puts * far;
    return plan.machine.launch + std::max(plan.machine.wire_latency + sent, pushed) + far +
           plan.machine.push_latency;
  }
  /// When own rows are out.
  double pushed() const { return plan.machine.launch + own_chunks() * own + plan.machine.push_latency; }
  double run(double now, std::int32_t row, double cycles) const {
    const std::int32_t parts = plan.gather.row.parts;
    for (std::int32_t part = 0; part < parts; ++part)
      now = std::max(now, arrival(row, part)) + cycles / plan.machine.clock / parts;
    return now;
  }

 private:
  /// How much of a chunk there is where the last block of a source has few rows.
  double filled(const ArrivalSteps::Place& step) const {
    const double rows = plan.gather.block_rows;
    return std::clamp(static_cast<double>(plan.gather.rows_of(step.source)) / rows - step.block, 0.0, 1.0);
  }
  /// As many as they would be whole.
  double own_chunks() const {
    const double rows = plan.gather.block_rows, parts = plan.gather.row.parts;
    return static_cast<double>(plan.gather.rows_of(plan.steps.rank)) / rows * parts;
  }
};

Pace pace_of(const AgGemmPlan& plan) {
  const double chunk_bytes = static_cast<double>(plan.gather.block_rows * plan.gather.row.row_bytes) /
                             static_cast<double>(plan.gather.row.parts);
  const std::int32_t near = plan.steps.near;
  const double loaded = load_seconds(plan, chunk_bytes);
  return {
      .plan = plan,
      .own = std::max(loaded, push_seconds(plan.machine, chunk_bytes, plan.stores(), near, plan.comm_ctas)),
      .wire = chunk_bytes / plan.machine.nic,
      .far = near > 0 ? std::max(loaded, push_seconds(plan.machine, chunk_bytes, near, near, plan.comm_ctas))
                      : 0};
}

double tile_cycles_of(const GemmShape& shape, const AgGemmPlan& plan, std::int32_t columns) {
  return tile_cycles(plan.machine, shape.k, plan.tile, columns, plan.a_box_rows(), plan.cluster);
}

/// When every b has been read once, from the arrival of the first rows on: few rows are multiplied faster
/// than that.
double memory_end(const GemmShape& shape, const Pace& pace) {
  double bytes = 0;
  for (int product = 0; product < products_of(shape); ++product)
    bytes += 2.0 * static_cast<double>(shape.k) * static_cast<double>(columns_of(shape, product));
  const Machine& machine = pace.plan.machine;
  return std::max(machine.launch, pace.arrival(0, 0)) + bytes / machine.memory_bytes;
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
  Machine planned = machine;
  if (options.nic_gbytes > 0) planned.nic = options.nic_gbytes * 1e9;
  return choose(shape, topology, rank, planned, options);
}

double estimated_seconds(const GemmShape& shape, const AgGemmPlan& plan) {
  const std::int32_t clusters = plan.compute_ctas / plan.tile.cluster;
  const std::int32_t parts = tail_parts(plan.tile);
  const double whole = tile_cycles_of(shape, plan, plan.tile.columns);
  const double narrow = tile_cycles_of(shape, plan, kSm90TailColumns);
  const Pace pace = pace_of(plan);
  const auto end_of = [&](std::int32_t cluster, double now) {
    for (std::int32_t i = 0; i < plan.assignment.tiles(cluster, clusters); ++i)
      now = pace.run(now, plan.assignment.place(i, cluster, clusters).tile.row, whole);
    for (std::int32_t i = 0; i < plan.assignment.tail_tiles(cluster, clusters, parts); ++i)
      now = pace.run(now, plan.assignment.tail_place(i, cluster, clusters, parts).tile.row, narrow);
    return now;
  };
  double last = 0;
  for (std::int32_t cluster = 0; cluster < clusters; ++cluster)
    last = std::max(last, end_of(cluster, plan.machine.launch));
  if (plan.assignment.late > 0) {
    for (std::int32_t cluster = 0; cluster < plan.assignment.late_clusters; ++cluster)
      last = std::max(last, end_of(-1 - cluster, pace.pushed()));
  }
  return std::max(last, memory_end(shape, pace)) + plan.machine.last_stores;
}

std::int32_t tiles_after_pushing(const GemmShape& shape, const AgGemmPlan& plan) {
  const double tile = tile_cycles_of(shape, plan, plan.tile.columns) / plan.machine.clock;
  const double left = estimated_seconds(shape, plan) - plan.machine.last_stores - pace_of(plan).pushed();
  return std::max(0, static_cast<std::int32_t>(left / tile));
}

}  // namespace mkernel::kernels
