// What kernels that compare outputs with fp64 have in common.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/cuda/memory/error.h"
#include "tools/mkbench/gpu_matrix.h"

namespace mkernel::bench {

__device__ inline double value_of(__nv_bfloat16 element) {
  return __bfloat162float(element);
}
__device__ inline double value_of(__half element) {
  return __half2float(element);
}

/// What fp32 rounds by at most, and what an io type does.
inline constexpr double kFloatUnit = 0x1p-24;
constexpr double rounding_unit_of(DataType type) {
  return type == DataType::kBf16 ? 0x1p-8 : 0x1p-11;
}
/// How far a number that is rounded to the type may be off because it is subnormal.
constexpr double subnormal_error_of(DataType type) {
  return type == DataType::kBf16 ? 0 : 0x1p-25;
}

struct Differences {
  unsigned long long elements, wrong;
  long long first_wrong;
  double error2, reference2;
  unsigned long long worst;  // bits of a double >= 0: ordered like integers
};

/// Counts one element; `at` names it.
__device__ inline void compare(double seen, double expected, double bound, std::int64_t at,
                               Differences* out) {
  atomicAdd(&out->elements, 1ULL);
  if (seen == expected) return;  // minus infinity, too
  const double error = fabs(seen - expected);
  if (!(error <= bound)) {
    atomicAdd(&out->wrong, 1ULL);
    out->first_wrong = at;
  }
  atomicAdd(&out->error2, error * error);
  atomicAdd(&out->reference2, expected * expected);
  atomicMax(&out->worst, static_cast<unsigned long long>(__double_as_longlong(error / bound)));
}

/// What the kernels have counted that queue(differences) launches on `stream`. Synchronous.
template <class Queue>
Result<ProductCheck> counted_differences(cudaStream_t stream, const Queue& queue) {
  using kernels::cuda_status;
  auto memory = GpuBuffer::allocate(sizeof(Differences));
  if (!memory.ok()) return memory.status();
  auto* on_gpu = static_cast<Differences*>(memory->get());
  MK_RETURN_IF_ERROR(cuda_status(cudaMemsetAsync(on_gpu, 0, sizeof(Differences), stream), "differences"));
  queue(on_gpu);
  MK_RETURN_IF_ERROR(cuda_status(cudaGetLastError(), "reference of attention"));
  Differences found{};
  MK_RETURN_IF_ERROR(cuda_status(
      cudaMemcpyAsync(&found, on_gpu, sizeof(found), cudaMemcpyDeviceToHost, stream), "differences"));
  MK_RETURN_IF_ERROR(cuda_status(cudaStreamSynchronize(stream), "reference of attention"));
  double worst = 0;
  static_assert(sizeof(worst) == sizeof(found.worst));
  std::memcpy(&worst, &found.worst, sizeof(worst));
  return ProductCheck{found.elements, found.wrong, found.wrong > 0 ? found.first_wrong : -1,
                      found.reference2 > 0 ? std::sqrt(found.error2 / found.reference2) : 0, worst};
}

}  // namespace mkernel::bench
