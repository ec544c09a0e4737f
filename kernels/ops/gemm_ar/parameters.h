// What GEMM+AR's kernel is given, and which it is: between the operation and the files that nvcc builds, one
// per tile.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/types.h"
#include "kernels/cuda/reduce/tile_reduce_parameters.h"
#include "kernels/plan/sm90_tile.h"

namespace mkernel::kernels {

struct CooperativeKernel;

struct GemmArParameters : TileReduceParameters {
  // Of PushSumsPlan; places of sums count from the half of the lent workspace that a launch uses, but marked
  // ones.
  std::byte* sums_there[kMaxNodeRanks];        ///< by turn of the node: this owner's there
  std::uint64_t* summed_there[kMaxNodeRanks];  ///< likewise: the words that this owner writes there
  std::byte* sums_here;                        ///< of rank 0
  const std::uint64_t* summed;                 ///< words that are written here, of rank 0
  std::uint64_t sums_at;                       ///< offset of sums_here in the workspace's region
  std::uint64_t sums_owner_bytes;              ///< from owner to owner
  bool marks_sums;                             ///< sums have marks, not words
  std::byte* c;                                ///< [m, n]
  std::uint64_t* copied;     ///< copies that warps have asked for, over all launches; in device memory
  std::uint64_t* forwarded;  ///< units of rail peers, likewise
  std::uint64_t* finished;  ///< [chunk]: units of own rows that lie in sums_here, over all launches; likewise
};

/// The kernel for the types and the layout of `shape`. `kShared`: owners share tiles, which those of 256 rows
/// are not built for.
template <Sm90Tile kTile, bool kShared>
CooperativeKernel gemm_ar_kernel_of(const GemmShape& shape);

}  // namespace mkernel::kernels
