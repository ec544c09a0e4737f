// mbarrier: arrivals and bytes counted in shared memory. Addresses are shared_address()es.
#pragma once

#include <cstdint>

namespace mkernel::kernels::ptx {

/// A phase completes after `arrivals` arrivals (and the bytes that were expected). One thread, once;
/// fence_mbarrier_init_release_cluster() and a CTA or cluster barrier before anyone else uses it.
__device__ __forceinline__ void mbarrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/// Its memory may become something else. One thread, when nobody uses it any more.
__device__ __forceinline__ void mbarrier_inval(std::uint32_t barrier) {
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void mbarrier_arrive_release_cta(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// `barrier` may lie in another CTA of the cluster: map_to_cta(). Hands on no ordinary writes; a release at
/// this scope costs a membar of the whole GPU, close to a microsecond: in the main loop of the GEMM a third
/// of its speed.
__device__ __forceinline__ void mbarrier_arrive_relaxed_cluster(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// The same, and hands on what this thread has written or acquired. For what happens seldom.
__device__ __forceinline__ void mbarrier_arrive_release_cluster(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// Arrives and lets the phase wait for `bytes` more, which asynchronous copies will count down.
__device__ __forceinline__ void mbarrier_arrive_expect_tx_release_cta(std::uint32_t barrier,
                                                                      std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

/// True when the phase of `parity` is complete; may suspend the thread for a short, bounded time before
/// saying no.
__device__ __forceinline__ bool mbarrier_try_wait_parity_acquire_cta(std::uint32_t barrier,
                                                                     std::uint32_t parity) {
  std::uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

/// The same for arrivals of other CTAs of the cluster too; takes over none of their ordinary writes.
__device__ __forceinline__ bool mbarrier_try_wait_parity_relaxed_cluster(std::uint32_t barrier,
                                                                         std::uint32_t parity) {
  std::uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

/// The same; takes over what those who arrived have handed on.
__device__ __forceinline__ bool mbarrier_try_wait_parity_acquire_cluster(std::uint32_t barrier,
                                                                         std::uint32_t parity) {
  std::uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

/// As try_wait, but never suspends.
__device__ __forceinline__ bool mbarrier_test_wait_parity_acquire_cta(std::uint32_t barrier,
                                                                      std::uint32_t parity) {
  std::uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

}  // namespace mkernel::kernels::ptx
