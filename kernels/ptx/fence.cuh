// Fences: between proxies (ordinary accesses and the copy engine or tensor cores), and between threads.
#pragma once

namespace mkernel::kernels::ptx {

/// Makes mbarrier_init() visible to the cluster and to the copy engine. By the initialising thread.
__device__ __forceinline__ void fence_mbarrier_init_release_cluster() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// Orders this thread's ordinary accesses to shared memory before later ones of TMA or wgmma.
__device__ __forceinline__ void fence_proxy_async_shared_cta() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Orders what this thread has written or acquired in global memory before its later TMA accesses to it.
__device__ __forceinline__ void fence_proxy_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

__device__ __forceinline__ void fence_acq_rel_gpu() {
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

__device__ __forceinline__ void fence_acq_rel_sys() {
  asm volatile("fence.acq_rel.sys;" ::: "memory");
}

}  // namespace mkernel::kernels::ptx
