#include "kernels/ops/gemm_rs/kernel.cuh"

namespace mkernel::kernels {

template CooperativeKernel gemm_rs_kernel_of<Sm90Tile::k128x128>(const GemmShape&);

}  // namespace mkernel::kernels
