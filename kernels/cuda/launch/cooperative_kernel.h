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
  std::size_t parameter_bytes = 0;  ///< size of its only argument
};

/// Loads the kernel on the current device and allows it its shared memory, so that no launch waits for
/// anything but its stream. `name` begins the errors.
Status load_cooperative(const CooperativeKernel& kernel, const std::string& name);

/// Queues one cluster of the kernel on `stream` with parameters of zeros, for which it does nothing. The
/// first cooperative launch of a process and the first launch of a kernel keep their thread up to 45 us
/// longer than later ones (measured); here nobody waits for them.
Status rehearse(const CooperativeKernel& kernel, CUstream_st* stream, const std::string& name);

/// Queues `ctas` CTAs on `stream`. Cooperative: CTAs wait for each other, so all of them are started
/// together, once there is room for all. `parameters`: `parameter_bytes` of them.
Status launch_cooperative(const CooperativeKernel& kernel, const void* parameters, std::int32_t ctas,
                          CUstream_st* stream, const std::string& name);

}  // namespace mkernel::kernels
