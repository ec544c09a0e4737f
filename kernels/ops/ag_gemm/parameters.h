// What AG+GEMM's kernel is given, and which it is: between the operation and the files that nvcc builds, one
// per tile.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/types.h"
#include "kernels/cuda/comm/paced_links.h"
#include "kernels/cuda/memory/tensor_map.h"
#include "kernels/plan/arrival_steps.h"
#include "kernels/plan/product_columns.h"
#include "kernels/plan/push_gather_plan.h"
#include "kernels/plan/sm90_tile.h"
#include "kernels/plan/tile_assignment.h"
#include "mkernel/device_endpoint.h"

namespace mkernel::kernels {

struct CooperativeKernel;

struct AgGemmParameters {
  TensorMap a;                  ///< own rows
  TensorMap b[1 + kMostMoreB];  ///< [k, n] by product
  /// By product: c of a slab's rows, so that no tile reaches into those of the next one. Sources with the
  /// fewest rows, sources with one more; both all of c where sources share a slab.
  TensorMap c[1 + kMostMoreB][2];
  const TensorMap* slabs;  ///< [half][slab][part], in device memory
  device::Endpoint endpoint;
  PacedLinks links;
  const std::byte* rows;            ///< own rows again, as bytes
  std::byte* words[kMaxNodeRanks];  ///< own workspaces of this node, by local rank
  std::byte* lent[kMaxNodeRanks];   ///< lent ones, likewise
  std::uint64_t half_bytes;         ///< of those
  std::int32_t local_rank;
  std::uint32_t region;                ///< the lent workspace's, for puts
  std::int32_t rails;                  ///< other nodes
  std::int32_t rail[kMaxKernelNodes];  ///< rail peers, from the next node on
  PushGatherPlan gather;
  ArrivalSteps steps;
  TileAssignment assignment;
  ProductColumns columns;
  std::int32_t read_in_place;  ///< the slab whose rows are read from a: the own one, or none (-1)
  std::int32_t k_blocks;
  std::int32_t comm_ctas;
  std::int32_t a_box_rows;  ///< of the maps of a and of the slabs
};

/// What the kernel that copies the gathered rows is given (gathered.h).
struct GatheredRows {
  std::byte* out;         ///< [m, k]
  const std::byte* own;   ///< this rank's rows
  const std::byte* lent;  ///< the lent workspace, in which those of the others lie
  std::uint64_t half_bytes;
  std::int32_t rank;
  PushGatherPlan gather;
};

/// The kernel for the types and the layout of `shape`.
template <Sm90Tile kTile, Sm90Cluster kCluster>
CooperativeKernel ag_gemm_kernel_of(const GemmShape& shape);

}  // namespace mkernel::kernels
