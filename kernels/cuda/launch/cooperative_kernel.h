// A persistent kernel as an operation holds it: found and loaded when the operation is made, launched later.
// Plain C++: no CUDA header needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "proto/abi/status.h"

struct CUstream_st;

namespace mkernel::kernels {

/// CTAs of `threads` threads in clusters of `cluster`, each with `shared_bytes` of dynamic shared memory.
struct CooperativeKernel {
  const void* function = nullptr;  ///< its stub in this program, as the CUDA runtime names kernels
  std::int32_t threads = 0;
  std::int32_t cluster = 1;
  std::size_t shared_bytes = 0;
};

/// Loads the kernel on the current device and allows it its shared memory, so that no launch waits for
/// anything but its stream. `name` begins the errors.
Status load_cooperative(const CooperativeKernel& kernel, const std::string& name);

/// Queues `ctas` CTAs on `stream`. Cooperative: CTAs wait for each other, so all of them are started
/// together, once there is room for all. `parameters`: the kernel's only argument.
Status launch_cooperative(const CooperativeKernel& kernel, const void* parameters, std::int32_t ctas,
                          CUstream_st* stream, const std::string& name);

}  // namespace mkernel::kernels
