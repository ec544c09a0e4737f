// Stands in for kernels/cuda/ptx/math.cuh (tests/support/on_host/cuda_names.h).
#pragma once

#include <cmath>

namespace mkernel::kernels::ptx {

inline float ex2_approx_ftz(float x) {
  return std::exp2(x);
}
inline float lg2_approx_ftz(float x) {
  return std::log2(x);
}

}  // namespace mkernel::kernels::ptx
