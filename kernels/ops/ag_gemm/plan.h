// Plan of AG+GEMM: who pushes, who computes, in which order; and how long that takes, the arrival of the rows
// against the pace of the product.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kernels/plan/arrival_steps.h"
#include "kernels/plan/machine.h"
#include "kernels/plan/product_columns.h"
#include "kernels/plan/push_gather_plan.h"
#include "kernels/plan/sm90_tile.h"
#include "kernels/plan/tile_assignment.h"
#include "kernels/plan/topology.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

/// Overrides; the same on every rank.
struct AgGemmOptions {
  std::optional<TileSize> tile;
  /// With `tile`; side by side only 128 x 256.
  Sm90Cluster cluster = Sm90Cluster::kStacked;
  std::int32_t comm_ctas = 0;              ///< that push own rows; 0 = by shape
  std::optional<std::int32_t> tail_tiles;  ///< with `tile`: how many cluster tiles are cut into narrow ones
  std::optional<std::int32_t> late_tiles;  ///< with `tile`, one node: how many are left to pushing CTAs
  std::int32_t sms = 0;                    ///< no more of the device's, so that ranks can share it; 0 = all
  /// 10^9 bytes a second that a rank sends to other nodes; 0 = the machine's. Daemons do not say yet what
  /// their rails can carry.
  double nic_gbytes = 0;
  double link_gbytes = 0;  ///< as GemmPlanOptions' of this name
  std::string machine;     ///< as GemmPlanOptions' of this name
};

/// Of more rows than these in all, sources never share tiles: the product takes longer than their arrival,
/// and begins with those that are here.
inline constexpr std::int64_t kMostGatheredRows = 512;

/// Pure; the same on every rank but for `steps.rank`. Tiles of c are those of the GEMM body, cut per source:
/// a row block is the rows of one cluster of one source, and the raster runs over the row blocks in the order
/// in which they arrive. Of few rows (kMostGatheredRows) row blocks hold rows of several sources when that
/// makes fewer of them (`gather.shared`): otherwise b would be read once for every source, through tiles that
/// are nearly empty. On one node pushing CTAs are through long before a large product is; all but CTA 0 and
/// its cluster then compute what the assignment leaves to late clusters.
struct AgGemmPlan {
  TileSize tile = Sm90Tile::k128x256;
  Sm90Cluster cluster = Sm90Cluster::kStacked;
  std::int32_t comm_ctas = 0;     ///< the first of the grid; a multiple of the cluster
  std::int32_t compute_ctas = 0;  ///< a multiple of the cluster
  ArrivalSteps steps;
  TileAssignment assignment;  ///< of the raster whose rows are the row blocks
  ProductColumns columns;     ///< of that raster
  PushGatherPlan gather;
  Machine machine;  ///< that it was planned for, with the NIC of the options

  /// Lanes of the group's channels, between rail peers only.
  std::uint32_t lanes() const { return rails() > 0 ? 1 : 0; }
  /// Bytes that this rank puts in every launch.
  std::uint64_t wire_bytes() const {
    return static_cast<std::uint64_t>(gather.rows_of(steps.rank) * gather.row.row_bytes) * rails();
  }
  /// Other nodes: as many rail peers has every rank.
  std::int32_t rails() const { return steps.far / (steps.near + 1); }
  /// Where own rows are stored: at the other ranks of the node, and here when they are put from there or lie
  /// with those of others.
  std::int32_t stores() const { return steps.near + (rails() > 0 || gather.shared ? 1 : 0); }
  /// Rows of a box of a: those of the highest tile, or half of them.
  std::int32_t a_box_rows() const { return kernels::a_box_rows(tile, cluster, gather.most_slab_rows()); }
  /// What a row of the raster is: a block of rows of `source`, or, when sources share tiles, of all rows
  /// (source 0, as the slab has it).
  ArrivalSteps::Place row_block(std::int32_t row) const {
    return gather.shared ? ArrivalSteps::Place{.block = row} : steps.place(row);
  }

  /// `machine`: what it runs on. Errors: check_on_machine(); kInvalidArgument for options outside what they
  /// allow.
  static Result<AgGemmPlan> make(const GemmShape& shape, const Topology& topology, std::uint32_t rank,
                                 const Machine& machine, const AgGemmOptions& options = {});
};

/// Seconds on the plan's machine, by playing the plan: rows arrive as links and wire (Machine::nic) let
/// them, every cluster takes its tiles in turn, each as soon as the parts of its rows are there. Within about
/// 5 % of what was measured where links and product matter (tests/perf/notes.md). `skew`: part of the product
/// by which all other ranks begin later.
double estimated_seconds(const GemmShape& shape, const AgGemmPlan& plan, double skew = 0);

/// What estimated_seconds() cannot be below, found in no time: as if all rows were there at once, and every
/// cluster had as much to do.
double least_seconds(const GemmShape& shape, const AgGemmPlan& plan);

/// How many tiles one of the plan's pushing clusters has time for after its last push, before the product
/// ends without it.
std::int32_t tiles_after_pushing(const GemmShape& shape, const AgGemmPlan& plan);

/// Whether the product begins with whole bands of own rows, and these are with all other ranks of the node in
/// no more than twice the time that it takes over them. The rows of others, which arrive in the order of
/// their use, are then there before it has need of them.
bool pushes_in_time(const GemmShape& shape, const AgGemmPlan& plan);

}  // namespace mkernel::kernels
