// The launch of GEMM+RS's kernel: between the operation and the files that nvcc builds, one per tile.
#pragma once

#include <cstdint>

#include "kernels/gemm/sm90_tile.h"
#include "kernels/ops/exchange/tile_reduce_parameters.h"
#include "mkernel/ops.h"
#include "proto/abi/status.h"

struct CUstream_st;

namespace mkernel::kernels {

/// Queues the kernel for the types and the layout of `shape` on `stream`.
template <Sm90Tile kTile>
Status launch_gemm_rs(const GemmShape& shape, const TileReduceParameters& parameters, std::int32_t ctas,
                      CUstream_st* stream);

}  // namespace mkernel::kernels
