// Memory for fp32 that a BLAS reads or writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace mkernel::kernels {

/// Of a cache line. Where rows straddle lines, packing them takes a BLAS longer: 2 to 8 % of a product, of
/// few rows a third.
inline constexpr std::align_val_t kFloatsAlignment{64};

struct DeleteFloats {
  void operator()(float* memory) const { ::operator delete[](memory, kFloatsAlignment); }
};
using Floats = std::unique_ptr<float[], DeleteFloats>;

/// So many of them, not initialised. Throws std::bad_alloc.
inline Floats make_floats(std::int64_t count) {
  return Floats(new (kFloatsAlignment) float[static_cast<std::size_t>(count)]);
}

}  // namespace mkernel::kernels
