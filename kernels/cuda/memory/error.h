// CUDA errors as Status. Plain C++: no CUDA header needed.
#pragma once

#include <string_view>

#include "proto/abi/status.h"

namespace mkernel::kernels {

/// The status of a CUDA runtime call: OK for cudaSuccess (0), else `what` with name and text of the error.
/// Out of memory is kResourceExhausted, no device or driver kUnavailable, anything else kInternal.
Status cuda_status(int error, std::string_view what);

}  // namespace mkernel::kernels
