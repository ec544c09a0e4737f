// A product whose tiles are summed over ranks, on the cpu executor: what the threads of a rank do. They play
// the CTAs of cuda/reduce/tile_reduce.cuh and sum_slots.cuh, on the same plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/base/views.h"
#include "kernels/cpu/comm/endpoint.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/launch/gemm_operation.h"
#include "kernels/cpu/sync/launch.h"
#include "kernels/plan/push_reduce_plan.h"
#include "kernels/plan/tile_reduce_plan.h"
#include "kernels/plan/topology.h"

namespace mkernel::kernels {

/// One unit of an owner's sums (plan/reduce_units.h): where it lies.
struct SumUnit {
  std::int32_t owner = 0;     ///< the rank whose rows these are
  std::int32_t unit = 0;      ///< number of the unit among the owner's
  std::int32_t packed = 0;    ///< place of the unit where units travel
  std::int32_t row_tile = 0;  ///< number of its row of tiles, counted from the owner's first row
  std::int32_t column = 0;    ///< number of its column of tiles
  Range rows;                 ///< rows, counted from the owner's first one; empty beyond the last one
  Range columns;              ///< columns of the matrix
};

/// `options`, with the tiles that suit the host and one thread that only sums where no tile is asked for.
TileReduceOptions host_options(TileReduceOptions options, const GemmShape& shape, const Topology& topology);

/// One rank's end of the reduction. Everything it refers to outlives it. Uses lane 0, between nodes.
class TileReduce {
 public:
  TileReduce(const TileReducePlan& plan, const GemmShape& shape, const Topology& topology,
             const SymmetricView& workspace, const SymmetricView& lent, Endpoint& endpoint);

  /// What the threads of one launch take work from.
  struct Work {
    explicit Work(const TileReducePlan& plan) : tiles(plan.cluster_tiles()), units(plan.units.all_units()) {}
    WorkCounter tiles, units;
  };
  /// What becomes of the sums of a unit of own rows: [unit rows, tile columns] elements of the operation's
  /// type.
  using Output = std::function<void(const SumUnit&, const std::byte* sums)>;

  /// Starts the roles that GEMM+RS and GEMM+AR have in common. `spare(thread)` is what a compute thread does
  /// once there are no tiles left, and what the one thread (thread 0) does that multiplies nothing. Operands
  /// and `work` stay until the roles are joined.
  void start(const CpuGemm& gemm, OperandB& b, const void* a, Work& work,
             const std::function<Status(int thread)>& spare, Launch& launch);

  /// compute: partial tiles in the order of the plan, each into its slot at the reducer. a: [m, k].
  Status multiply(const CpuGemm& gemm, const void* a, Work& work, const Launch& launch) const;

  /// intra_comm: sums for the rail peers, which are staged to be put, then own rows, to `output`.
  Status sum_units(const Output& output, Work& work, const Launch& launch);

  /// inter_send: puts the staged sums of every rail peer as their chunks become complete, and waits until
  /// their sources may be overwritten.
  Status put_partials(const Launch& launch);

  /// intra_comm, when an owner has no rows: dummy signals to the reducers of such owners, and the waits that
  /// a launch owes them.
  Status exchange_empty(const Launch& launch) const;

  /// Waits for `word`, which counts the finished units of a chunk in this rank's own memory.
  Status wait_chunk(const std::uint64_t& word, std::uint64_t count, SumStage stage,
                    const Launch& launch) const;

  const TileReducePlan& plan() const { return plan_; }
  const SymmetricView& workspace() const { return workspace_; }
  const SymmetricView& lent() const { return lent_; }
  Endpoint& endpoint() const { return endpoint_; }
  std::int32_t rank() const { return plan_.rank(); }
  /// The owner that this rank reduces for on the node that many turns on; itself last.
  std::int32_t reduced(std::int32_t node_turn) const;
  SumUnit unit_of(std::int32_t owner, std::int32_t unit) const;
  /// Copies a unit into c[., n]: rows of `c` from the owner's first on.
  void store_unit(const SumUnit& unit, const std::byte* from, std::byte* c) const;

 private:
  std::uint64_t& word(std::byte* workspace, std::uint64_t offset) const;
  void store_part(const Launch& launch, const TileReducePlan::Tile& tile,
                  const TileReducePlan::Tile::Part& part, Range columns, const float* product) const;
  Status wait_unit(const Launch& launch, std::int32_t node_turn, const SumUnit& unit) const;
  void sum_unit(const Launch& launch, std::int32_t node_turn, const SumUnit& unit, std::byte* sums) const;

  const TileReducePlan& plan_;
  const GemmShape& shape_;
  const Topology& topology_;
  const SymmetricView& workspace_;
  const SymmetricView& lent_;
  Endpoint& endpoint_;
  const std::uint32_t node_;
  const std::int32_t local_;
  std::vector<std::uint64_t> staged_;  ///< [node turn][chunk]: units staged, over all launches
};

}  // namespace mkernel::kernels
