// What a kernel watches in host memory. One warp of the grid does (DESIGN.md section 4): more would slow the
// copies of everybody else on the bus.
#pragma once

#include <cstdint>

namespace mkernel::kernels {

/// Abort words of the session and the group, in host memory registered with CUDA; null when not watched.
struct HostWatch {
  const std::uint32_t* session_abort = nullptr;
  const std::uint32_t* group_abort = nullptr;
};

}  // namespace mkernel::kernels
