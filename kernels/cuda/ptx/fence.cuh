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

class SysReleased;
__device__ __forceinline__ SysReleased fence_acq_rel_sys();

/// Says that the thread which holds it has fenced at system scope: what it had written or acquired before is
/// ordered before the signals that it gives afterwards. Every relaxed signal to another GPU or to the host
/// takes one as an argument, so that a signal without its fence does not compile. Costs nothing at run time.
/// (A GPU alone cannot show that such a fence is missing: all of its SMs share one L2.)
class SysReleased {
 public:
  /// Where the fence is the caller's to make, by the contract of a public function.
  static __device__ __forceinline__ SysReleased by_contract_of_caller() { return {}; }

 private:
  __device__ __forceinline__ SysReleased() {}
  friend __device__ SysReleased fence_acq_rel_sys();
};

/// NOTES: takes 5 to 20 us while the NVLinks are full, whatever this thread itself has stored. Signal many
/// things behind one fence where that is possible.
__device__ __forceinline__ SysReleased fence_acq_rel_sys() {
  asm volatile("fence.acq_rel.sys;" ::: "memory");
  return {};
}

}  // namespace mkernel::kernels::ptx
