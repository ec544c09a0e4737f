// Stands in for kernels/cuda/ptx/tma.cuh (tests/support/on_host/cuda_names.h).
#pragma once

#include <cstdint>

#include "tests/support/on_host/sm90.h"

namespace mkernel::kernels::ptx {

inline void tma_prefetch_descriptor(const void*) {}
inline void tma_load_2d(std::uint32_t shared, const void* map, std::int32_t x, std::int32_t y,
                        std::uint32_t barrier) {
  mkernel::test::host_load(shared, map, x, y, 0, barrier, 0);
}
inline void tma_load_multicast_2d(std::uint32_t shared, const void* map, std::int32_t x, std::int32_t y,
                                  std::uint32_t barrier, std::uint16_t ctas) {
  mkernel::test::host_load(shared, map, x, y, 0, barrier, ctas);
}
inline void tma_load_3d(std::uint32_t shared, const void* map, std::int32_t x, std::int32_t y, std::int32_t z,
                        std::uint32_t barrier) {
  mkernel::test::host_load(shared, map, x, y, z, barrier, 0);
}
inline void tma_load_multicast_3d(std::uint32_t shared, const void* map, std::int32_t x, std::int32_t y,
                                  std::int32_t z, std::uint32_t barrier, std::uint16_t ctas) {
  mkernel::test::host_load(shared, map, x, y, z, barrier, ctas);
}
inline void tma_prefetch_2d(const void*, std::int32_t, std::int32_t) {}
inline void tma_prefetch_3d(const void*, std::int32_t, std::int32_t, std::int32_t) {}
inline void tma_store_3d(const void* map, std::int32_t x, std::int32_t y, std::int32_t z,
                         std::uint32_t shared) {
  mkernel::test::host_store(map, x, y, z, shared);
}
inline void bulk_commit_group() {
  mkernel::test::host_commit_stores();
}
template <int kPending>
void bulk_wait_group_read() {
  mkernel::test::host_wait_stores(kPending);
}
template <int kPending>
void bulk_wait_group() {
  mkernel::test::host_wait_stores(kPending);
}

}  // namespace mkernel::kernels::ptx
