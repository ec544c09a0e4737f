// A rehearsal: a launch of a kernel with parameters of zeros, in which it does nothing. An operation begins
// with one (rehearse() in cuda/launch/cooperative_kernel.h).
#pragma once

#include "mkernel/device_endpoint.h"
#include "proto/abi/host_device.h"

namespace mkernel::kernels {

/// Every launch of an operation has a control block.
MK_HOST_DEVICE inline bool is_rehearsal(const device::Endpoint& endpoint) {
  return endpoint.control == nullptr;
}

}  // namespace mkernel::kernels
