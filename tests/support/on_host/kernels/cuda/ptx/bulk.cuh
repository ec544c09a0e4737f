// Stands in for kernels/cuda/ptx/bulk.cuh (tests/support/on_host/cuda_names.h).
#pragma once

#include <cstdint>

#include "tests/support/on_host/sm90.h"

namespace mkernel::kernels::ptx {

inline void bulk_load(std::uint32_t shared, const void* global, std::uint32_t bytes, std::uint32_t barrier) {
  mkernel::test::host_bulk_load(shared, global, bytes, barrier);
}
inline void bulk_store(void* global, std::uint32_t shared, std::uint32_t bytes) {
  mkernel::test::host_bulk_store(global, shared, bytes);
}
inline void bulk_reduce_add_f32(void* global, std::uint32_t shared, std::uint32_t bytes) {
  mkernel::test::host_bulk_add(static_cast<float*>(global), shared, bytes);
}

}  // namespace mkernel::kernels::ptx
