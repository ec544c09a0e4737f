// Stands in for kernels/cuda/ptx/cluster.cuh (tests/support/on_host/cuda_names.h).
#pragma once

#include <cstdint>

#include "tests/support/on_host/sm90.h"

namespace mkernel::kernels::ptx {

inline std::uint32_t cluster_cta_rank() {
  return mkernel::test::host_thread().cluster_rank;
}
inline std::uint32_t map_to_cta(std::uint32_t shared, std::uint32_t cta) {
  return mkernel::test::host_in_cta(shared, cta);
}
inline void cluster_arrive_relaxed() {}
inline void cluster_arrive_release() {}
inline void cluster_wait_acquire() {
  mkernel::test::host_cluster_sync();
}

}  // namespace mkernel::kernels::ptx
