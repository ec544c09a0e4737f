// Stands in for kernels/cuda/ptx/fence.cuh (tests/support/on_host/cuda_names.h).
#pragma once

namespace mkernel::kernels::ptx {

inline void fence_mbarrier_init_release_cluster() {}
inline void fence_proxy_async_shared_cta() {}
inline void fence_proxy_async_global() {}

class SysReleased;
inline SysReleased fence_acq_rel_sys();

class SysReleased {
 public:
  static SysReleased by_contract_of_caller() { return {}; }

 private:
  SysReleased() = default;
  friend SysReleased fence_acq_rel_sys();
};

inline SysReleased fence_acq_rel_sys() {
  return {};
}

}  // namespace mkernel::kernels::ptx
