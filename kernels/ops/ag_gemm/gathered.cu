#include <cuda_runtime_api.h>

#include "kernels/cuda/memory/error.h"
#include "kernels/cuda/memory/load_kernel.h"
#include "kernels/ops/ag_gemm/gathered.cuh"
#include "kernels/ops/ag_gemm/gathered.h"
#include "kernels/plan/cuts.h"

namespace mkernel::kernels {

Status copy_gathered(const GatheredRows& rows, std::int32_t ctas, CUstream_st* stream) {
  const auto world = static_cast<std::int32_t>(rows.gather.world);
  const dim3 grid(static_cast<unsigned>(ceil_div(ctas, world)), static_cast<unsigned>(world));
  copy_gathered_kernel<<<grid, kGatheredThreads, 0, stream>>>(rows);
  return cuda_status(cudaGetLastError(), "ag_gemm: copy of the gathered rows");
}

Status load_copy_gathered() {
  return load_kernel(reinterpret_cast<const void*>(&copy_gathered_kernel), "ag_gemm");
}

}  // namespace mkernel::kernels
