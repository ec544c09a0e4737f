// Built instead of ring_cuda.cu where there is no CUDA toolkit.
#include "tools/mkbench/ring_cuda.h"

namespace mkernel::bench {
namespace {

Status without_cuda() {
  return {StatusCode::kUnimplemented, "rings written by a GPU: this mkbench was built without CUDA"};
}

}  // namespace

std::string name_of_gpu(int) {
  return "none";
}

Result<std::vector<double>> echo_from_gpu(Group&, int, std::uint64_t, bool) {
  return without_cuda();
}

Result<GpuRingRate> signals_from_gpu(Group&, int, std::uint32_t, std::uint32_t, std::uint64_t) {
  return without_cuda();
}

}  // namespace mkernel::bench
