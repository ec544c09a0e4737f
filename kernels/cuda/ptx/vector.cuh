// 16 or 8 bytes of global memory at a time, and what 16-bit elements in them are worth.
#pragma once

#include <cstdint>

namespace mkernel::kernels::ptx {

/// Bytes that are read once: they leave what L1 holds alone. Ordinary loads in the sense of the memory model.
__device__ __forceinline__ uint4 ld_once_v4(const void* global) {
  uint4 value;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(global)
               : "memory");
  return value;
}

__device__ __forceinline__ void st_v4(void* global, const uint4& value) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(global), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}

__device__ __forceinline__ void st_v2(void* global, std::uint32_t low, std::uint32_t high) {
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(global), "r"(low), "r"(high) : "memory");
}

/// Two elements, the low half first.
__device__ __forceinline__ float2 cvt_f32x2_bf16x2(std::uint32_t packed) {
  return {__uint_as_float(packed << 16), __uint_as_float(packed & 0xffff0000U)};
}

__device__ __forceinline__ float2 cvt_f32x2_f16x2(std::uint32_t packed) {
  float2 value;
  asm("{\n\t.reg .b16 low, high;\n\tmov.b32 {low, high}, %2;\n\tcvt.f32.f16 %0, low;\n\tcvt.f32.f16 %1, "
      "high;\n\t}"
      : "=f"(value.x), "=f"(value.y)
      : "r"(packed));
  return value;
}

}  // namespace mkernel::kernels::ptx
