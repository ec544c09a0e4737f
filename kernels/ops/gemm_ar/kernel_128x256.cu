#include "kernels/ops/gemm_ar/kernel.cuh"

namespace mkernel::kernels {

template Status launch_gemm_ar<Sm90Tile::k128x256>(const GemmShape&, const GemmArParameters&, std::int32_t,
                                                   CUstream_st*);

}  // namespace mkernel::kernels
