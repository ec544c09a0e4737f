// Which is the mixture of experts' kernel: between the operation and the files that nvcc builds.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/types.h"
#include "kernels/plan/sm90_tile.h"

namespace mkernel::kernels {

struct CooperativeKernel;

/// The tile of both products, of each CTA of a cluster of two. Of the first of two products half of its
/// columns are gates, and half what they let through.
inline constexpr Sm90Tile kMoeTile = Sm90Tile::k128x256;
inline constexpr std::int32_t kMoeCluster = 2;

/// The kernel for the type of tokens and weights and the layout of the weights. `routing_bytes`: of shared
/// memory, that a dispatching CTA has for its routing (moe_routing_words()).
template <DataType kType, Layout kLayoutW>
CooperativeKernel moe_kernel_of(std::size_t routing_bytes);

}  // namespace mkernel::kernels
