// A rehearsal: a launch of a kernel with parameters of zeros, in which it does nothing. An operation begins
// with one (rehearse() in cuda/launch/cooperative_kernel.h).
#pragma once

#include "mkernel/device_endpoint.h"

namespace mkernel::kernels {

/// Every launch of an operation has a control block.
__device__ __forceinline__ bool is_rehearsal(const device::Endpoint& endpoint) {
  return endpoint.control == nullptr;
}

}  // namespace mkernel::kernels
