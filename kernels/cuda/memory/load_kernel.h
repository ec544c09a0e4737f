// Kernels are loaded ahead of their first launch.
#pragma once

#include <string>

#include "proto/abi/status.h"

namespace mkernel::kernels {

/// Loads `function` (a kernel's stub in this program) on the current device, whatever CUDA_MODULE_LOADING
/// says. By default CUDA loads a kernel at its first launch, and that may wait until the context is idle: for
/// a kernel that waits for another rank, which waits for this one. Costs nothing when it is loaded already.
/// `name` begins the errors: CUDA's, kInternal when the driver says that it is not loaded afterwards.
Status load_kernel(const void* function, const std::string& name);

}  // namespace mkernel::kernels
