// Data of global memory that say themselves that they have come, while another GPU may be storing them.
#pragma once

#include <cstdint>

namespace mkernel::kernels::ptx {

/// 16 bytes as they are in memory now: every call reads anew, and each of the four words is read whole.
/// Orders nothing, not even the four among each other: for values that matter alone.
__device__ __forceinline__ uint4 ld_relaxed_sys_v4(const void* global) {
  uint4 value;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(global)
               : "memory");
  return value;
}

/// For who reads like this: each of the four words is written whole. Orders nothing.
__device__ __forceinline__ void st_relaxed_sys_v4(void* global, const uint4& value) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(global), "r"(value.x),
               "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

}  // namespace mkernel::kernels::ptx
