// Which is GEMM+RS's kernel: between the operation and the files that nvcc builds, one per tile.
#pragma once

#include "kernels/base/types.h"
#include "kernels/plan/sm90_tile.h"

namespace mkernel::kernels {

struct CooperativeKernel;

/// The kernel for the types and the layout of `shape`. `kShared`: owners share tiles, which those of 256 rows
/// are not built for.
template <Sm90Tile kTile, bool kShared>
CooperativeKernel gemm_rs_kernel_of(const GemmShape& shape);

}  // namespace mkernel::kernels
