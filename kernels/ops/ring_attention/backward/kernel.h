// Which are the kernels of the backward pass of ring attention: between the operation and the files that nvcc
// builds.
#pragma once

#include "kernels/base/types.h"

namespace mkernel::kernels {

struct CooperativeKernel;

/// On one node; given RingBackwardParameters.
template <int kHeadDim, bool kCausal, DataType kType>
CooperativeKernel ring_backward_kernel_of();
/// Over several; given RingBackwardNodesParameters.
template <int kHeadDim, bool kCausal, DataType kType>
CooperativeKernel ring_backward_nodes_kernel_of();

}  // namespace mkernel::kernels
