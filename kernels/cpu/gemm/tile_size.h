// The tiles that suit the cpu executor.
#pragma once

#include "kernels/base/types.h"
#include "kernels/plan/sm90_tile.h"
#include "kernels/plan/topology.h"

namespace mkernel::kernels {

/// Tiles for the plans of a product on the cpu executor: as large as one BLAS call needs to be as fast as a
/// large one, but no larger than what a rank has. Over several nodes columns are narrower where wide ones
/// would pad what travels by more than an eighth.
TileSize host_tile(const GemmShape& shape, const Topology& topology);

}  // namespace mkernel::kernels
