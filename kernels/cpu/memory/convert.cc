#include "kernels/cpu/memory/convert.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mkernel::kernels {

float f16_to_float(std::uint16_t value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value & 0x8000U) << 16;
  const std::uint32_t exponent = (value >> 10) & 0x1fU;
  const std::uint32_t mantissa = value & 0x3ffU;
  if (exponent == 0) {  // zero and subnormal: mantissa * 2^-24, exact in fp32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
  }
  if (exponent == 31) {  // infinity, or NaN made quiet as the hardware does
    const std::uint32_t quiet = mantissa != 0 ? 0x400000U : 0U;
    return std::bit_cast<float>(sign | 0x7f800000U | quiet | (mantissa << 13));
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

std::uint16_t float_to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  std::uint32_t half = 0;
  if (magnitude > 0x7f800000U) {  // NaN, quiet
    half = 0x7e00U | ((magnitude >> 13) & 0x3ffU);
  } else if (magnitude >= 0x47800000U) {  // >= 2^16
    half = 0x7c00U;
  } else if (magnitude >= 0x38800000U) {  // normal; rounding up may carry into infinity, as it should
    half = (magnitude - 0x38000000U + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
  } else {  // subnormal: adding 0.5 puts the last fp16 bit at the last fp32 bit, so the addition rounds
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    half = std::bit_cast<std::uint32_t>(shifted) - 0x3f000000U;
  }
  return static_cast<std::uint16_t>(sign | half);
}

namespace {

void widen_bf16(const std::uint16_t* in, float* out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] = bf16_to_float(in[i]);
}

void narrow_bf16(const float* in, std::uint16_t* out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] = float_to_bf16(in[i]);
}

#if defined(__x86_64__)
bool have_f16c() {
  // Every processor with AVX2 has them; not every compiler can ask for F16C by name.
  static const bool have = __builtin_cpu_supports("avx2");
  return have;
}

__attribute__((target("avx,f16c"))) std::size_t widen_f16_vector(const std::uint16_t* in, float* out,
                                                                 std::size_t count) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(half));
  }
  return i;
}

__attribute__((target("avx,f16c"))) std::size_t narrow_f16_vector(const float* in, std::uint16_t* out,
                                                                  std::size_t count) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), half);
  }
  return i;
}
#else
bool have_f16c() {
  return false;
}
std::size_t widen_f16_vector(const std::uint16_t*, float*, std::size_t) {
  return 0;
}
std::size_t narrow_f16_vector(const float*, std::uint16_t*, std::size_t) {
  return 0;
}
#endif

}  // namespace

void widen(DataType type, const void* in, float* out, std::size_t count) {
  const auto* from = static_cast<const std::uint16_t*>(in);
  if (type == DataType::kBf16) return widen_bf16(from, out, count);
  for (std::size_t i = have_f16c() ? widen_f16_vector(from, out, count) : 0; i < count; ++i) {
    out[i] = f16_to_float(from[i]);
  }
}

void narrow(DataType type, const float* in, void* out, std::size_t count) {
  auto* to = static_cast<std::uint16_t*>(out);
  if (type == DataType::kBf16) return narrow_bf16(in, to, count);
  for (std::size_t i = have_f16c() ? narrow_f16_vector(in, to, count) : 0; i < count; ++i) {
    to[i] = float_to_f16(in[i]);
  }
}

}  // namespace mkernel::kernels
