#include "kernels/ops/ag_gemm/kernel.cuh"

namespace mkernel::kernels {

template Status launch_ag_gemm<Sm90Tile::k256x128>(const GemmShape&, const AgGemmParameters&, std::int32_t,
                                                   CUstream_st*);

}  // namespace mkernel::kernels
