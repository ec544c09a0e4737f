// The device that the cuda executor needs. Plain C++: no CUDA header needed.
#pragma once

#include <cstdint>
#include <string_view>

#include "proto/abi/status.h"

namespace mkernel::kernels {

/// Multiprocessors of the current device, no more than `at_most` unless that is 0. `who` begins the error:
/// kUnavailable without a device or driver, kUnimplemented when it is not of compute capability 9.0 (the
/// kernels are built for sm_90a).
Result<std::int32_t> hopper_multiprocessors(std::string_view who, std::int32_t at_most = 0);

}  // namespace mkernel::kernels
