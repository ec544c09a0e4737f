// Between gemm_sm90() and the kernels that nvcc builds, one source file per tile.
#pragma once

#include <cstdint>

#include "kernels/base/types.h"
#include "kernels/cuda/memory/tensor_map.h"
#include "kernels/plan/sm90_tile.h"
#include "kernels/plan/tile_assignment.h"

struct CUstream_st;

namespace mkernel {
class Status;
}

namespace mkernel::kernels {

/// Parameters of the kernel.
struct Sm90LocalProduct {
  TensorMap a, b, c;
  TileAssignment assignment;
  std::int32_t k_blocks;
};

/// Queues the kernel for the types and the layout of `shape` and the cluster of `plan` on `stream`.
template <Sm90Tile kTile>
Status launch_sm90_local(const GemmShape& shape, const Sm90LocalProduct& product, const Sm90Plan& plan,
                         CUstream_st* stream);

}  // namespace mkernel::kernels
