// Times that a product whose tiles are summed over ranks is planned with.
#pragma once

#include <cstdint>

#include "kernels/base/types.h"
#include "kernels/plan/machine.h"

namespace mkernel::kernels {

/// Of one element of the product.
double product_seconds(const GemmShape& shape, const Machine& machine);

/// Of the links of a node with `sources` ranks, for what a rank pushes of an element of the product: as a
/// partial; of GEMM+AR as a finished sum too.
double link_seconds(OpKind kind, std::int32_t sources, const Machine& machine);

}  // namespace mkernel::kernels
