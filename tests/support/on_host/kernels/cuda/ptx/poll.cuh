// Stands in for kernels/cuda/ptx/poll.cuh (tests/support/on_host/cuda_names.h). Whoever reads such data may
// be waiting for them: others run first.
#pragma once

#include <cstring>

#include "tests/support/on_host/cuda_names.h"

namespace mkernel::kernels::ptx {

inline uint4 ld_relaxed_sys_v4(const void* global) {
  mkernel::test::host_yield();
  uint4 value;
  std::memcpy(&value, global, sizeof value);
  return value;
}

inline void st_relaxed_sys_v4(void* global, const uint4& value) {
  mkernel::test::host_yield();
  std::memcpy(global, &value, sizeof value);
}

}  // namespace mkernel::kernels::ptx
