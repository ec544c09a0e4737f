// Which is the kernel of attention of a rank alone: between the operation and the files that nvcc builds.
#pragma once

#include "kernels/base/types.h"

namespace mkernel::kernels {

struct CooperativeKernel;

template <int kHeadDim, int kTileKeys, DataType kType>
CooperativeKernel attention_kernel_of();

}  // namespace mkernel::kernels
