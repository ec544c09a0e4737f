// From a kernel template to a kernel; included by the files that nvcc builds.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/launch/cooperative_kernel.h"

namespace mkernel::kernels {

/// `kernel`, whose launches have the threads, the clusters and at least `shared_bytes` of what Config says.
template <class Config, class Parameters>
CooperativeKernel cooperative_kernel(void (*kernel)(Parameters), std::size_t shared_bytes) {
  return {.function = reinterpret_cast<const void*>(kernel),
          .threads = Config::kThreads,
          .cluster = Config::kCluster,
          .shared_bytes = shared_bytes,
          .parameter_bytes = sizeof(Parameters)};
}

}  // namespace mkernel::kernels
