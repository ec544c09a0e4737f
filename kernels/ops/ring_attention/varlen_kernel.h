// Which is the kernel of ring attention over sequences of different lengths: between the operation and the
// files that nvcc builds.
#pragma once

#include "kernels/base/types.h"

namespace mkernel::kernels {

struct CooperativeKernel;

template <int kHeadDim, int kTileKeys, DataType kType>
CooperativeKernel ring_varlen_kernel_of();

}  // namespace mkernel::kernels
