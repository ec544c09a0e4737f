#include "tests/support/gpu.h"

#include <cuda_runtime_api.h>

#include "tests/support/skip.h"
#include "tools/mkbench/gpu_matrix.h"

namespace mkernel::test {

bool hopper_or_skip() {
  static const bool present = [] {
    const Status status = bench::hopper_present();
    if (!status.ok()) skip(status.to_string());
    return status.ok();
  }();
  return present;
}

int multiprocessors() {
  int count = 0;
  if (cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0) != cudaSuccess) return 1;
  return count;
}

}  // namespace mkernel::test
