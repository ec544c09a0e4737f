// Not part of any program: products whose sums are touched while they are under way, which ptxas serializes.
// The build of the kernels must refuse it (kernels/cuda/refuse_serialized.sh).
#include <cstdint>

#include "kernels/cuda/ptx/wgmma.cuh"

namespace mkernel::kernels {

__global__ void serialized(float* out, std::uint64_t a, std::uint64_t b) {
  float sums[32] = {};
  ptx::wgmma_fence();
  for (int step = 0; step < 4; ++step) {
    ptx::wgmma_m64n64k16<ptx::WgmmaElement::kBf16, ptx::WgmmaMajor::kK>(sums, a, b, true);
    for (float& sum : sums) sum *= 0.5F;
  }
  ptx::wgmma_commit_group();
  ptx::wgmma_wait_group<0>();
  for (int i = 0; i < 32; ++i) out[threadIdx.x * 32 + i] = sums[i];
}

}  // namespace mkernel::kernels
