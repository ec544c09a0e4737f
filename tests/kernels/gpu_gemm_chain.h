// Two products in one launch, the second waiting for tiles of the first: what fused kernels do with the GEMM
// body.
#pragma once

#include <cstdint>

#include "kernels/cuda/memory/tensor_map.h"
#include "kernels/plan/sm90_tile.h"
#include "mkernel/ops.h"
#include "proto/abi/status.h"

namespace mkernel::test {

/// h[m, k] = x[m, k] x v[k, k]; y[m, n] = h x w[k, n]; bf16, all row-major, dense.
struct Chain {
  std::int64_t m, k, n;
  const void *x, *v, *w;
  void *h, *y;
  std::uint32_t* finished;  ///< zeroed; one word per 64 rows at least
  std::uint32_t* failed;    ///< zeroed; set when a wait gave up
};

/// Runs the chain with this tile on `ctas` CTAs (all resident) of the current device, on the default stream.
Status launch_chain(const Chain& chain, kernels::Sm90Tile tile, std::int32_t ctas);

}  // namespace mkernel::test
