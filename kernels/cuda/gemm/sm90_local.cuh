// The product of matrices that lie on this GPU: the GEMM body with the plainest schedule.
#pragma once

#include <cstddef>

#include "kernels/cuda/gemm/sm90_body.cuh"
#include "kernels/cuda/gemm/sm90_launch.h"
#include "kernels/cuda/gemm/sm90_share.cuh"

namespace mkernel::kernels {

/// The tiles of the assignment; nothing to wait for, nobody to tell.
template <class Config, class Tile = Config>
class Sm90LocalSchedule {
 public:
  static constexpr bool kWaits = false;

  explicit __device__ __forceinline__ Sm90LocalSchedule(const Sm90LocalProduct& product)
      : product_(product) {}

  __device__ __forceinline__ int tiles() const { return Share::tiles(product_.assignment, 0); }
  __device__ __forceinline__ int k_blocks() const { return product_.k_blocks; }
  __device__ __forceinline__ Sm90TilePlace tile(int i) const {
    const auto place = Share::place(product_.assignment, 0, i);
    const int row = Share::first_row(place.block, place.row);
    return {&product_.a, &product_.b, &product_.c, row, place.column, 0, row, place.column};
  }
  __device__ __forceinline__ int a_box_rows(const Sm90TilePlace& tile) const
      requires(fits_boxes(Config::kTile)) {
    return tile.a_row < product_.m ? product_.a_box_rows : 0;
  }
  __device__ __forceinline__ auto tail() const requires Config::kHasTail {
    return Sm90LocalSchedule<Config, Sm90Tail<Config>>(product_);
  }

 private:
  using Share = Sm90Share<Config, Tile>;
  const Sm90LocalProduct& product_;
};

template <class Config>
__global__ __launch_bounds__(Config::kThreads,
                             1) void sm90_local_kernel(const __grid_constant__ Sm90LocalProduct product) {
  extern __shared__ __align__(1024) std::byte memory[];
  sm90_gemm(Sm90LocalSchedule<Config>(product), *reinterpret_cast<Sm90Shared<Config>*>(memory));
}

}  // namespace mkernel::kernels
