// Between gemm_sm90() and the kernels that nvcc builds, one source file per tile, or per number of rows.
#pragma once

#include <cstddef>
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
  std::int32_t m;
  std::int32_t a_box_rows;  ///< of the map of a
};

/// Queues the kernel for the types and the layout of `shape` and the cluster of `plan` on `stream`.
template <Sm90Tile kTile>
Status launch_sm90_local(const GemmShape& shape, const Sm90LocalProduct& product, const Sm90Plan& plan,
                         CUstream_st* stream);

/// Parameters of the kernel for few rows. Boxes of a have all rows of the plan.
struct Sm90SkinnyProduct {
  TensorMap a, b;
  std::byte* c;
  std::int32_t m, n;
  std::int32_t k_blocks;  ///< ceil(k / kSm90TileK)
  std::int32_t log2_split;
};

/// Queues the kernel for tiles of `kRows` rows and for the types and the layout of `shape` on `stream`.
template <std::int32_t kRows>
Status launch_sm90_skinny(const GemmShape& shape, const Sm90SkinnyProduct& product, CUstream_st* stream);

}  // namespace mkernel::kernels
