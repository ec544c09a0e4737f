// What the operations of the cuda executor that sum tiles over ranks have in common on the host's side.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/cuda/gemm/with_tile.h"
#include "kernels/cuda/launch/gemm_operation.h"
#include "kernels/cuda/memory/buffer.h"
#include "kernels/cuda/reduce/tile_reduce_parameters.h"
#include "kernels/plan/tile_reduce_plan.h"
#include "mkernel/ops.h"
#include "proto/abi/status.h"

namespace mkernel::kernels {

/// Calls `with.operator()<tile, whether owners share tiles>()`, which returns a Status, for what `plan` has.
/// `who` begins the error for a tile that does not exist.
template <class With>
Status with_tile_of(const TileReducePlan& plan, const std::string& who, const With& with) {
  return with_tile(plan.tile, who, [&]<Sm90Tile kTile>() -> Status {
    if constexpr (tile_rows(kTile) <= kMostSharedRows) {
      if (plan.shared.any()) return with.template operator()<kTile, true>();
    }
    return with.template operator()<kTile, false>();
  });
}

class TileReduceOperation : public CudaGemmOperation {
 public:
  TileReduceOperation(OpKind kind, const TileReducePlan& plan, const GemmShape& shape, Topology topology,
                      std::uint32_t rank);

  double expected_seconds() const override { return estimated_seconds(kind(), shape(), plan_); }

 protected:
  /// Maps of this rank's slot at every reducer; they stay as long as the workspaces do.
  Status attach() override;

  /// Everything but own_c. Refuses operands that TMA cannot read and a c that is not aligned to 16 bytes.
  Status describe(const GemmArguments& arguments, std::uint64_t deadline_ns, TileReduceParameters& p) const;

  const TileReducePlan& plan() const { return plan_; }
  /// Of the grid.
  std::int32_t ctas() const { return plan_.reduce_ctas + plan_.compute_ctas; }
  std::int32_t local() const { return static_cast<std::int32_t>(topology().local_of(rank())); }
  std::int32_t node_turn(std::int32_t turn) const { return turn / plan_.reduce.sources; }
  /// Local rank of the one of this node that reduces for the owner at `turn`.
  std::uint32_t reducer_of(std::int32_t turn) const;
  /// Of attach(): fills this rank's workspace in [begin, end) with PushReducePlan::kMark, before any rank
  /// launches.
  Status mark(std::uint64_t begin, std::uint64_t end) const;

 private:
  /// At a reducer of this node, where it is mapped here.
  std::byte* slot(std::uint32_t reducer, std::uint64_t half, std::int32_t node_turn,
                  std::int32_t source) const;
  Status describe_operands(const GemmArguments& arguments, TileReduceParameters& p) const;
  void describe_workspace(TileReduceParameters& p) const;
  void describe_wire(PartialsWire& wire) const;

  const TileReducePlan plan_;
  std::array<OwnerOnDevice, kMaxNodeRanks> first_owners_{};
  DeviceBuffer owners_;   ///< TileReduceParameters::owners
  DeviceBuffer slots_;    ///< TensorMap [half][turn]
  DeviceBuffer claimed_;  ///< TileReduceParameters::claimed
  DeviceBuffer staged_;   ///< PartialsWire::staged
};

}  // namespace mkernel::kernels
