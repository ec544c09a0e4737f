#include "kernels/ops/gemm_ar/kernel.cuh"

namespace mkernel::kernels {

template CooperativeKernel gemm_ar_kernel_of<Sm90Tile::k128x256>(const GemmShape&);

}  // namespace mkernel::kernels
