// Stands in for kernels/cuda/ptx/poll.cuh (tests/support/on_host/cuda_names.h). Whoever reads such data may
// be waiting for them: others run first.
#pragma once

#include <cstddef>
#include <cstring>

#include "tests/support/on_host/cuda_names.h"

namespace mkernel::kernels::ptx {

inline uint4 ld_relaxed_sys_v4(const void* global) {
  mkernel::test::host_yield();
  uint4 value;
  std::memcpy(&value, global, sizeof value);
  return value;
}

/// In two parts, so that readers see one of them.
inline void st_relaxed_sys_v4(void* global, const uint4& value) {
  constexpr std::size_t kPart = sizeof value / 2;
  for (const std::size_t part : {std::size_t{0}, kPart}) {
    mkernel::test::host_yield();
    std::memcpy(static_cast<std::byte*>(global) + part, reinterpret_cast<const std::byte*>(&value) + part,
                kPart);
  }
}

}  // namespace mkernel::kernels::ptx
