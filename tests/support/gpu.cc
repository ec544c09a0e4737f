#include "tests/support/gpu.h"

#include <cuda_runtime_api.h>

#include <iostream>

#include "tools/mkbench/gpu_matrix.h"

namespace mkernel::test {

bool hopper_or_skip() {
  static const bool present = [] {
    const Status status = bench::hopper_present();
    // The line that tests/kernels/CMakeLists.txt gives to ctest as SKIP_REGULAR_EXPRESSION.
    if (!status.ok()) std::cout << "SKIPPED: " << status.to_string() << "\n";
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
