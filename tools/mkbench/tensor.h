// Tensors of the benchmark: 16-bit storage as the operations take it, fp32 copies for the references.
#pragma once

#include <cstdint>
#include <vector>

#include "mkernel/ops.h"
#include "tools/mkbench/random.h"

namespace mkernel::bench {

/// `count` uniform random values in [-1, 1) times `scale`, rounded to `type`.
std::vector<std::uint16_t> random_tensor(DataType type, std::uint64_t seed, std::size_t count,
                                         float scale = 1);

/// The values of a stored tensor.
std::vector<float> to_float(DataType type, const std::vector<std::uint16_t>& stored);

/// `count` values no operation writes (NaN), so that an element left out is seen.
std::vector<std::uint16_t> poisoned(std::size_t count);

/// c[m, n] = a[m, k] x b in fp32 (b row-major [k, n], or column-major [n, k]).
void reference_gemm(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, const float* b,
                    Layout b_layout, float* c);

}  // namespace mkernel::bench
