// The driver and the device that the cuda executor needs. Plain C++: no CUDA header needed.
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/plan/machine.h"
#include "proto/abi/status.h"

namespace mkernel::kernels {

/// Whether this machine's driver runs this build (check_driver_version()). Starts nothing on a device.
Status check_driver();

/// The current device as plans see it: by its name, or as the machine called `named` unless that is empty,
/// with the device's multiprocessors, no more than `at_most` unless that is 0. `who` begins the error:
/// kUnavailable without a device, or without a driver that
/// is new enough, kUnimplemented when it is not of compute capability 9.0 (the
/// kernels are built for sm_90a), kInvalidArgument when there is no machine of that name.
Result<Machine> hopper_machine(std::string_view who, std::string_view named = {}, std::int32_t at_most = 0);

}  // namespace mkernel::kernels
