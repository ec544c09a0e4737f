// Approximate functions of fp32, one instruction each.
#pragma once

namespace mkernel::kernels::ptx {

/// 2^x within 2^-22 of it; 0 for minus infinity and where the result would be subnormal.
__device__ __forceinline__ float ex2_approx_ftz(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

/// The logarithm to base 2; minus infinity of 0.
__device__ __forceinline__ float lg2_approx_ftz(float x) {
  float result;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

}  // namespace mkernel::kernels::ptx
