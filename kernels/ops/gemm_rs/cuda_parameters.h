// Which is GEMM+RS's kernel: between the operation and the files that nvcc builds, one per tile.
#pragma once

#include "kernels/gemm/sm90_tile.h"
#include "kernels/ops/cooperative_kernel.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

/// The kernel for the types and the layout of `shape`.
template <Sm90Tile kTile>
CooperativeKernel gemm_rs_kernel_of(const GemmShape& shape);

}  // namespace mkernel::kernels
