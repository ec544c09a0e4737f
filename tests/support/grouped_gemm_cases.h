// Ends of groups for tests of the grouped GEMM, and its product in fp64.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "mkernel/ops.h"
#include "tests/support/random_tensor.h"

namespace mkernel::test {

/// Of groups with so many rows each.
inline std::vector<std::int32_t> ends_of(const std::vector<std::int32_t>& rows) {
  std::vector<std::int32_t> ends;
  for (const std::int32_t count : rows) ends.push_back((ends.empty() ? 0 : ends.back()) + count);
  return ends;
}

/// Of `used` rows that are spread over the groups anyhow. A third of the groups has none, some have most.
inline std::vector<std::int32_t> random_ends(std::int64_t groups, std::int64_t used, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::int32_t> rows(static_cast<std::size_t>(groups));
  const auto at_most = [&](std::uint64_t most) { return random() % (most + 1); };
  while (used > 0) {
    const auto group = static_cast<std::size_t>(at_most(static_cast<std::uint64_t>(groups - 1)));
    if (group % 3 == 1 && groups > 1) continue;
    const auto more = static_cast<std::int32_t>(1 + at_most(static_cast<std::uint64_t>(used - 1)));
    rows[group] += more;
    used -= more;
  }
  return ends_of(rows);
}

/// The first row and the number of rows of every group.
inline std::vector<std::pair<std::int64_t, std::int64_t>> rows_of(const std::vector<std::int32_t>& ends) {
  std::vector<std::pair<std::int64_t, std::int64_t>> rows;
  std::int64_t begin = 0;
  for (const std::int32_t end : ends) {
    rows.emplace_back(begin, end - begin);
    begin = end;
  }
  return rows;
}

/// Elements of c that are farther from the fp64 product than one rounding and fp32 sums explain, and those
/// behind the last group that are no longer kPoison.
inline std::size_t wrong_elements(const GroupedGemmShape& shape, const std::vector<std::int32_t>& ends,
                                  const std::vector<std::uint16_t>& a, const std::vector<std::uint16_t>& b,
                                  const std::vector<std::uint16_t>& c) {
  const auto value = [&](const std::vector<std::uint16_t>& from, std::int64_t at) {
    return value_of(shape.dtype, from[static_cast<std::size_t>(at)]);
  };
  const double unit = kernels::rounding_unit(shape.dtype);
  const bool by_row = shape.b_layout == Layout::kRowMajor;
  std::size_t wrong = 0;
  std::int64_t matrix = 0;
  for (const auto& [begin, rows] : rows_of(ends)) {
    for (std::int64_t row = begin; row < begin + rows; ++row) {
      for (std::int64_t column = 0; column < shape.n; ++column) {
        double sum = 0, size = 0;
        for (std::int64_t k = 0; k < shape.k; ++k) {
          const double term = value(a, row * shape.k + k) *
                              value(b, matrix + (by_row ? k * shape.n + column : column * shape.k + k));
          sum += term;
          size += std::abs(term);
        }
        const double bound = unit * std::abs(sum) + static_cast<double>(shape.k) * 0x1p-24 * size;
        if (!(std::abs(value(c, row * shape.n + column) - sum) <= bound)) ++wrong;
      }
    }
    matrix += shape.k * shape.n;
  }
  for (auto at = static_cast<std::size_t>(ends.back() * shape.n); at < c.size(); ++at)
    wrong += c[at] == kPoison ? 0 : 1;
  return wrong;
}

}  // namespace mkernel::test
