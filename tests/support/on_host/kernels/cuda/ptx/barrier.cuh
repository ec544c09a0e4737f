// Stands in for kernels/cuda/ptx/barrier.cuh (tests/support/on_host/cuda_names.h).
#pragma once

#include <cstdint>

#include "tests/support/on_host/cuda_names.h"

namespace mkernel::kernels::ptx {

inline void barrier_sync(std::uint32_t id, std::uint32_t threads) {
  mkernel::test::host_barrier(id, threads);
}
inline void barrier_arrive(std::uint32_t id, std::uint32_t threads) {
  mkernel::test::host_barrier_arrive(id, threads);
}

}  // namespace mkernel::kernels::ptx
