// The kernels of one tile; one file each, so that they compile side by side.
#include "kernels/gemm/sm90_local.cuh"

namespace mkernel::kernels {

template Status launch_sm90_local<Sm90Tile::k128x256>(const GemmShape&, MatrixElement,
                                                      const Sm90LocalProduct&, const Sm90Plan&, CUstream_st*);

}  // namespace mkernel::kernels
