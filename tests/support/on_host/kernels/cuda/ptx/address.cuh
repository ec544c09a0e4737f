// Stands in for kernels/cuda/ptx/address.cuh (tests/support/on_host/cuda_names.h).
#pragma once

#include <cstdint>
#include <stdexcept>

#include "tests/support/on_host/sm90.h"

namespace mkernel::kernels::ptx {

inline std::uint32_t shared_address(const void* pointer) {
  return mkernel::test::host_shared_address(pointer);
}
inline bool elect_sync() {
  return threadIdx.x % 32 == 0;
}
inline std::uint64_t globaltimer() {
  return mkernel::test::host_clock_ns();
}
inline void st_fault() {
  throw std::logic_error("a pipeline is stuck");
}

}  // namespace mkernel::kernels::ptx
