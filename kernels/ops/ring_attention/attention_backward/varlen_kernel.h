// Which is the kernel of the backward pass of attention of sequences of different lengths: between the
// operation and the files that nvcc builds.
#pragma once

#include "kernels/base/types.h"

namespace mkernel::kernels {

struct CooperativeKernel;

template <int kHeadDim, bool kCausal, DataType kType>
CooperativeKernel varlen_backward_kernel_of();

}  // namespace mkernel::kernels
