// Which is the kernel of the backward pass of ring attention: between the operation and the files that nvcc
// builds.
#pragma once

#include "kernels/base/types.h"

namespace mkernel::kernels {

struct CooperativeKernel;

template <int kHeadDim, bool kCausal, DataType kType>
CooperativeKernel ring_backward_kernel_of();

}  // namespace mkernel::kernels
