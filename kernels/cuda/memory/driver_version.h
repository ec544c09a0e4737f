// Which CUDA driver a program needs. Pure, plain C++: no CUDA header needed.
#pragma once

#include "proto/abi/status.h"

namespace mkernel::kernels {

/// Whether a driver of CUDA version `driver` (12090: CUDA 12.9; 0: there is none) runs programs that have the
/// CUDA runtime of version `runtime` in them. Versions are as CUDA writes them. kUnavailable names both, and
/// what is needed: the first driver of the runtime's major version, which is what the runtime itself asks
/// for. That driver has every function without which nothing works here (CUDA 12.0); what needs a newer one
/// has a substitute (packaging/OPERATING.md).
Status check_driver_version(int driver, int runtime);

}  // namespace mkernel::kernels
