// Loads and stores of shared memory, and the arithmetic before them. Addresses are shared_address()es.
#pragma once

#include <cstdint>

namespace mkernel::kernels::ptx {

/// Four 8x8 matrices of 16-bit elements: lane l gives the address of row l % 8 of matrix l / 8 (16 bytes);
/// register i holds elements 2 * (l % 4), + 1 of row l / 4 of matrix i.
__device__ __forceinline__ void stmatrix_x4(std::uint32_t row, std::uint32_t m0, std::uint32_t m1,
                                            std::uint32_t m2, std::uint32_t m3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(m0),
               "r"(m1), "r"(m2), "r"(m3)
               : "memory");
}

/// 16 bytes; `address` a multiple of 16.
__device__ __forceinline__ uint4 ld_shared_v4(std::uint32_t address) {
  uint4 value;
  asm volatile("ld.shared::cta.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

/// The same bytes as four fp32.
__device__ __forceinline__ float4 ld_shared_f32x4(std::uint32_t address) {
  float4 value;
  asm volatile("ld.shared::cta.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

/// 8 bytes; `address` a multiple of 8.
__device__ __forceinline__ float2 ld_shared_f32x2(std::uint32_t address) {
  float2 value;
  asm volatile("ld.shared::cta.v2.f32 {%0, %1}, [%2];"
               : "=f"(value.x), "=f"(value.y)
               : "r"(address)
               : "memory");
  return value;
}

/// Volatile, so that they stay behind the wait for the tensor cores that write `value`.
__device__ __forceinline__ void st_shared_f32(std::uint32_t address, float value) {
  asm volatile("st.shared::cta.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}
__device__ __forceinline__ void st_shared_f32x4(std::uint32_t address, const float4& value) {
  asm volatile("st.shared::cta.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(value.x), "f"(value.y),
               "f"(value.z), "f"(value.w)
               : "memory");
}

/// 16 bytes into another CTA of the cluster, whose `barrier` counts them down when they are there: whoever
/// waits for that at cluster scope sees them, and no fence is needed. Both addresses are of one CTA:
/// map_to_cta().
__device__ __forceinline__ void st_async_f32x4(std::uint32_t address, const float4& value,
                                               std::uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
          address),
      "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(barrier)
      : "memory");
}

/// `address` may lie in another CTA of the cluster: map_to_cta().
__device__ __forceinline__ void st_shared_cluster_v4(std::uint32_t address, const uint4& value) {
  asm volatile("st.shared::cluster.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}

/// Adds to a word of shared memory and returns what it held; orders both ways between threads of the CTA.
__device__ __forceinline__ std::uint32_t atom_add_acq_rel_cta_shared(std::uint32_t address,
                                                                     std::uint32_t value) {
  std::uint32_t before;
  asm volatile("atom.acq_rel.cta.shared::cta.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "r"(address), "r"(value)
               : "memory");
  return before;
}

/// Two fp32 rounded to nearest even, `low` in the low half. Volatile, so that it stays behind the wait for
/// the tensor cores that write its operands: the compiler does not see that dependence.
__device__ __forceinline__ std::uint32_t cvt_rn_bf16x2(float low, float high) {
  std::uint32_t packed;
  asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

__device__ __forceinline__ std::uint32_t cvt_rn_f16x2(float low, float high) {
  std::uint32_t packed;
  asm volatile("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

/// gate / (1 + exp(-gate)) x up, approximately (2^-20 of it). Volatile, for the same reason.
__device__ __forceinline__ float swiglu_approx(float gate, float up) {
  float result;
  asm volatile(
      "{\n"
      ".reg .f32 t;\n"
      "mul.f32 t, %1, 0fBFB8AA3B;\n"  // -log2(e)
      "ex2.approx.f32 t, t;\n"
      "add.f32 t, t, 0f3F800000;\n"
      "rcp.approx.f32 t, t;\n"
      "mul.f32 t, t, %1;\n"
      "mul.f32 %0, t, %2;\n"
      "}"
      : "=f"(result)
      : "f"(gate), "f"(up));
  return result;
}

}  // namespace mkernel::kernels::ptx
