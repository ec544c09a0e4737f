// A product against fp64.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "mkernel/ops.h"
#include "tests/support/random_tensor.h"

namespace mkernel::test {

/// What an element of a product that is summed over ranks should be: the sum, and of all its terms and of the
/// ranks' parts the sizes added up.
struct ProductSum {
  double sum = 0, terms = 0, partials = 0;
};

/// Adds the part of one rank, a [m, k] x b, to `sums` [m, n].
inline void add_product(const GemmShape& shape, const std::vector<std::uint16_t>& a,
                        const std::vector<std::uint16_t>& b, std::vector<ProductSum>& sums) {
  const auto value = [&](const std::vector<std::uint16_t>& from, std::int64_t at) {
    return value_of(shape.dtype, from[static_cast<std::size_t>(at)]);
  };
  const bool by_row = shape.b_layout == Layout::kRowMajor;
  for (std::int64_t at = 0; at < shape.m * shape.n; ++at) {
    const std::int64_t row = at / shape.n, column = at % shape.n;
    ProductSum& sum = sums[static_cast<std::size_t>(at)];
    double product = 0;
    for (std::int64_t k = 0; k < shape.k; ++k) {
      const double term =
          value(a, row * shape.k + k) * value(b, by_row ? k * shape.n + column : column * shape.k + k);
      product += term;
      sum.terms += std::abs(term);
    }
    sum.sum += product;
    sum.partials += std::abs(product);
  }
}

/// How many elements of c [m, n] are not a [m, k] x b, in fp64, but for their own rounding and that of sums
/// in fp32.
inline std::size_t wrong_elements(const GemmShape& shape, const std::vector<std::uint16_t>& a,
                                  const std::vector<std::uint16_t>& b, const std::vector<std::uint16_t>& c) {
  const auto value = [&](const std::vector<std::uint16_t>& from, std::int64_t at) {
    return value_of(shape.dtype, from[static_cast<std::size_t>(at)]);
  };
  const bool by_row = shape.b_layout == Layout::kRowMajor;
  const double unit = shape.dtype == DataType::kBf16 ? 0x1p-8 : 0x1p-11;
  std::size_t wrong = 0;
  for (std::int64_t row = 0; row < shape.m; ++row) {
    for (std::int64_t column = 0; column < shape.n; ++column) {
      double sum = 0, size = 0;
      for (std::int64_t k = 0; k < shape.k; ++k) {
        const double term =
            value(a, row * shape.k + k) * value(b, by_row ? k * shape.n + column : column * shape.k + k);
        sum += term;
        size += std::abs(term);
      }
      const double bound = unit * std::abs(sum) + static_cast<double>(shape.k) * 0x1p-24 * size;
      if (!(std::abs(value(c, row * shape.n + column) - sum) <= bound)) ++wrong;
    }
  }
  return wrong;
}

}  // namespace mkernel::test
