// Stands in for kernels/cuda/ptx/mbarrier.cuh (tests/support/on_host/cuda_names.h).
#pragma once

#include <cstdint>

#include "tests/support/on_host/sm90.h"

namespace mkernel::kernels::ptx {

inline void mbarrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  mkernel::test::host_barrier_at(barrier).init(arrivals);
}
inline void mbarrier_inval(std::uint32_t) {}
inline void mbarrier_arrive_release_cta(std::uint32_t barrier) {
  mkernel::test::host_barrier_at(barrier).arrive(0);
}
inline void mbarrier_arrive_relaxed_cluster(std::uint32_t barrier) {
  mkernel::test::host_barrier_at(barrier).arrive(0);
}
inline void mbarrier_arrive_release_cluster(std::uint32_t barrier) {
  mkernel::test::host_barrier_at(barrier).arrive(0);
}
inline void mbarrier_arrive_expect_tx_release_cta(std::uint32_t barrier, std::uint32_t bytes) {
  mkernel::test::host_barrier_at(barrier).arrive(static_cast<std::int32_t>(bytes));
}
inline bool mbarrier_test_wait_parity_acquire_cta(std::uint32_t barrier, std::uint32_t parity) {
  return mkernel::test::host_barrier_at(barrier).phase != parity;
}
inline bool mbarrier_try_wait_parity_acquire_cta(std::uint32_t barrier, std::uint32_t parity) {
  if (mbarrier_test_wait_parity_acquire_cta(barrier, parity)) return true;
  mkernel::test::host_yield();
  return false;
}
inline bool mbarrier_try_wait_parity_acquire_cluster(std::uint32_t barrier, std::uint32_t parity) {
  return mbarrier_try_wait_parity_acquire_cta(barrier, parity);
}
inline bool mbarrier_try_wait_parity_relaxed_cluster(std::uint32_t barrier, std::uint32_t parity) {
  return mbarrier_try_wait_parity_acquire_cta(barrier, parity);
}

}  // namespace mkernel::kernels::ptx
