// The launch of sm90_skinny.cuh's kernel for one number of rows; included by one file for each, so that they
// compile side by side.
#pragma once

#include <cstdint>

#include "kernels/cuda/gemm/launch_clusters.cuh"
#include "kernels/cuda/gemm/sm90_launch.h"
#include "kernels/cuda/gemm/sm90_skinny.cuh"
#include "kernels/cuda/gemm/with_tile.h"
#include "kernels/plan/cuts.h"
#include "proto/abi/status.h"

namespace mkernel::kernels {

template <std::int32_t kRows>
Status launch_sm90_skinny(const GemmShape& shape, const Sm90SkinnyProduct& product, CUstream_st* stream) {
  return with_types(shape, [&]<DataType kInput, Layout kLayoutB>() -> Status {
    using Config = Sm90SkinnyConfig<kRows, kInput, kLayoutB>;
    const auto tiles = static_cast<unsigned>(ceil_div(product.n, kSkinnyColumns));
    return launch_clusters(&sm90_skinny_kernel<Config>, tiles << product.log2_split, 1U << product.log2_split,
                           Config::kThreads, sm90_skinny_shared_bytes<Config>(), product, stream);
  });
}

}  // namespace mkernel::kernels
