// What a multiprocessor of sm_90 has beside threads, on the host: shared memory of a cluster, barriers in it,
// the copy engine and the tensor cores. Copies are made late and in any order, by a thread that serves the
// grid; products when their thread waits for them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/memory/tensor_map.h"
#include "tests/support/on_host/cuda_names.h"

namespace mkernel::test {

/// A map that the copies below understand, instead of the driver's.
kernels::TensorMap host_tensor_map(const kernels::MatrixView& view);
/// Likewise, of boxes without a swizzle.
kernels::TensorMap host_packed_map(const kernels::MatrixView& view);

/// Shared addresses: bytes from the beginning of the CTA's shared memory; of another CTA's of the cluster its
/// number + 1 is in the upper 8 bits.
std::uint32_t host_shared_address(const void* pointer);
std::byte* host_shared_at(std::uint32_t address);
inline std::uint32_t host_in_cta(std::uint32_t address, std::uint32_t cta) {
  return (address & 0xffffffU) | (cta + 1) << 24;
}

/// 64 bits of shared memory: a phase ends when nothing is pending, arrivals nor bytes.
struct HostBarrier {
  std::uint32_t expected : 12, pending : 12, phase : 8;
  std::int32_t bytes;

  void init(std::uint32_t arrivals);
  void arrive(std::int32_t more_bytes);
  void take(std::int32_t copied_bytes);

 private:
  void end_phase();
};
static_assert(sizeof(HostBarrier) == 8);
inline HostBarrier& host_barrier_at(std::uint32_t address) {
  return *reinterpret_cast<HostBarrier*>(host_shared_at(address));
}

/// By the calling thread, to be made later. `ctas`: bits of the CTAs of the cluster; 0: the own one.
void host_load(std::uint32_t shared, const void* map, std::int32_t x, std::int32_t y, std::int32_t z,
               std::uint32_t barrier, std::uint32_t ctas);
void host_store(const void* map, std::int32_t x, std::int32_t y, std::int32_t z, std::uint32_t shared);
/// Plain bytes between global memory and the own shared memory: sizes and addresses are multiples of 16.
void host_bulk_load(std::uint32_t shared, const void* global, std::uint32_t bytes, std::uint32_t barrier);
void host_bulk_store(void* global, std::uint32_t shared, std::uint32_t bytes);
void host_bulk_add(float* global, std::uint32_t shared, std::uint32_t bytes);
void host_commit_stores();
/// Until at most `pending` groups of this thread are not done.
void host_wait_stores(std::size_t pending);
/// 16 bytes from a register to `shared`, which `barrier` of the same CTA counts: by the calling thread, to be
/// made later.
void host_store_shared(std::uint32_t shared, const float4& value, std::uint32_t barrier);
/// The copy engine: a service of the grid.
void host_copy_engine();
/// The 128-byte swizzle: 16-byte pieces of a row of 128 bytes change places with its number.
constexpr std::uint32_t host_swizzled(std::uint32_t offset) {
  return offset ^ (offset >> 7 & 7) << 4;
}

/// How a product takes its operands.
struct HostProduct {
  int columns;
  bool bf16;
  bool a_by_k, b_by_k;  ///< the operand lies in rows of k
};
/// One thread's part of d (+)= a x b. Operands are read, and d is written, when its warp waits for it.
void host_wgmma(float* d, const HostProduct& product, std::uint64_t a, std::uint64_t b, bool accumulate);
/// With the four registers at `a`.
void host_wgmma(float* d, const HostProduct& product, const std::uint32_t* a, std::uint64_t b,
                bool accumulate);
void host_commit_products();
/// Until at most `pending` groups of this thread are not done.
void host_wait_products(std::size_t pending);
/// Of all threads of a grid that is over.
void host_forget_products();
/// While it lives, products of one warpgroup of every CTA take long, so that the others run ahead.
class HostSlowWarpgroup {
 public:
  explicit HostSlowWarpgroup(std::uint32_t warpgroup);
  ~HostSlowWarpgroup();
  HostSlowWarpgroup(const HostSlowWarpgroup&) = delete;
  HostSlowWarpgroup& operator=(const HostSlowWarpgroup&) = delete;
};

}  // namespace mkernel::test
