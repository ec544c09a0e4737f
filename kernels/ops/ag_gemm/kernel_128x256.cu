#include "kernels/ops/ag_gemm/kernel.cuh"

namespace mkernel::kernels {

template CooperativeKernel ag_gemm_kernel_of<Sm90Tile::k128x256>(const GemmShape&);

}  // namespace mkernel::kernels
