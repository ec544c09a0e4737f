// setmaxnreg: registers move between the warpgroups of a CTA. All warps of a warpgroup; needs a kernel with a
// register cap (__launch_bounds__(threads, 1)).
#pragma once

namespace mkernel::kernels::ptx {

/// Blocks until the pool of the CTA holds enough.
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace mkernel::kernels::ptx
