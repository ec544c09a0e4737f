// Clusters: CTAs on neighbouring SMs that share their shared memory.
#pragma once

#include <cstdint>

namespace mkernel::kernels::ptx {

__device__ __forceinline__ std::uint32_t cluster_cta_rank() {
  std::uint32_t rank;
  asm volatile("mov.u32 %0, %cluster_ctarank;" : "=r"(rank));
  return rank;
}

/// The shared::cluster address of what lies at `shared` here, in CTA `cta` of the cluster.
__device__ __forceinline__ std::uint32_t map_to_cta(std::uint32_t shared, std::uint32_t cta) {
  std::uint32_t mapped;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(shared), "r"(cta));
  return mapped;
}

/// All threads of the cluster, whole warps, before cluster_wait_acquire(). Relaxed: what this thread wrote to
/// global memory is not handed on (a release would wait for it); initialised mbarriers are, by
/// fence_mbarrier_init_release_cluster().
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

/// The same, and hands on what this thread has written, to shared memory of the cluster too.
__device__ __forceinline__ void cluster_arrive_release() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_wait_acquire() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

}  // namespace mkernel::kernels::ptx
