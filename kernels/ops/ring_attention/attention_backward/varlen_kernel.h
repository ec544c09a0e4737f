// Which is the kernel of the backward pass of attention of sequences of different lengths: between the
// operation and the files that nvcc builds.
#pragma once

#include "kernels/base/types.h"

namespace mkernel::kernels {

struct CooperativeKernel;

template <int kHeadDim, bool kCausal, DataType kType>
CooperativeKernel varlen_backward_kernel_of();
/// With a sliding window, of sequences that are packed or not.
template <int kHeadDim, DataType kType>
CooperativeKernel window_backward_kernel_of();

}  // namespace mkernel::kernels
