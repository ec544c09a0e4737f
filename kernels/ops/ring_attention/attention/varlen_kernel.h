// Which is the kernel of attention of sequences of different lengths: between the operation and the files
// that nvcc builds.
#pragma once

#include "kernels/base/types.h"

namespace mkernel::kernels {

struct CooperativeKernel;

template <int kHeadDim, int kTileKeys, DataType kType>
CooperativeKernel varlen_kernel_of();

}  // namespace mkernel::kernels
