#include "kernels/ops/gemm_rs/kernel.cuh"

namespace mkernel::kernels {

template Status launch_gemm_rs<Sm90Tile::k128x256>(const GemmShape&, const TileReduceParameters&,
                                                   std::int32_t, CUstream_st*);

}  // namespace mkernel::kernels
