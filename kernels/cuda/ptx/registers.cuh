// setmaxnreg: registers move between the warpgroups of a CTA. All warps of a warpgroup; needs a kernel with a
// register cap (__launch_bounds__(threads, 1)).
#pragma once

#include <cstdint>
#include <cstring>

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

/// `value` is found here, and not where it is first used.
template <class Value>
__device__ __forceinline__ void compute_now(Value& value) {
  static_assert(sizeof(Value) % 4 == 0);
  std::uint32_t words[sizeof(Value) / 4];
  memcpy(words, &value, sizeof value);
#pragma unroll
  for (std::uint32_t& word : words) asm volatile("" : "+r"(word));
  memcpy(&value, words, sizeof value);
}

}  // namespace mkernel::kernels::ptx
