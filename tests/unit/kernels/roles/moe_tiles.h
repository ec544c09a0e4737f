// Tiles of the mixture of experts, computed on the host one element after the other: what stands in for the
// body that multiplies.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/memory/convert.h"
#include "kernels/ops/moe_dispatch_gemm/tasks.cuh"
#include "tests/support/moe_reference.h"
#include "tests/support/random_tensor.h"

namespace mkernel::test {

using namespace mkernel::kernels;

struct HostTile {
  static constexpr int kTileN = 256, kTileK = 64;
};

struct HostTiles {
  const MoeShape& shape;
  const MoeWeights& weights;  ///< of all experts

  void multiply(const MoeParameters& p, const MoeTasks<HostTile>& tasks, const Sm90Task& task) const {
    std::byte* mine = moe_memory(p, p.rank);
    const bool shared = task.product >= 2;
    const std::int64_t expert = shared ? 0 : p.plan.owners.first(p.rank) + task.b_matrix;
    const std::int64_t inner = shared ? shape.shared_intermediate : shape.intermediate;
    const bool gated = tasks.gated(task.product), last_of_two = !gated && inner > 0;
    const std::int64_t w1_columns = inner > 0 ? 2 * inner : shape.n;
    const std::uint16_t* w1 =
        (shared ? weights.shared_w1 : weights.w1).data() + expert * shape.hidden * w1_columns;
    const std::uint16_t* w2 = (shared ? weights.shared_w2 : weights.w2).data() + expert * inner * shape.n;
    const auto product = [&](const std::byte* row, const std::uint16_t* b, std::int64_t k,
                             std::int64_t columns, std::int64_t column) {
      double sum = 0;
      for (std::int64_t i = 0; i < k; ++i)
        sum += element(row, i) * value_of(shape.dtype, b[i * columns + column]);
      return sum;
    };
    for (std::int32_t r = 0; r < task.rows; ++r) {
      const std::int32_t row = task.a_row + r;
      const std::byte* from = shared ? p.x + row * shape.hidden * 2 : mine + p.plan.row(row);
      std::byte* hidden = mine + (shared ? p.plan.shared_hidden(row) : p.plan.hidden(row));
      if (gated) {
        for (std::int64_t c = task.c_column; c < std::min<std::int64_t>(inner, task.c_column + 128); ++c) {
          const double gate = product(from, w1, shape.hidden, w1_columns, c);
          store(hidden, c,
                gate / (1 + std::exp(-gate)) * product(from, w1, shape.hidden, w1_columns, inner + c));
        }
        continue;
      }
      std::byte* to = tasks.row_of(task, r);
      for (std::int64_t c = task.c_column; c < std::min<std::int64_t>(shape.n, task.c_column + 256); ++c) {
        store(to, c,
              last_of_two ? product(hidden, w2, inner, shape.n, c)
                          : product(from, w1, shape.hidden, w1_columns, c));
      }
    }
  }

 private:
  double element(const std::byte* row, std::int64_t column) const {
    std::uint16_t bits;
    std::memcpy(&bits, row + column * 2, sizeof bits);
    return value_of(shape.dtype, bits);
  }

  void store(std::byte* row, std::int64_t column, double value) const {
    const auto rounded = static_cast<float>(value);
    std::uint16_t bits;
    narrow(shape.dtype, &rounded, &bits, 1);
    std::memcpy(row + column * 2, &bits, sizeof bits);
  }
};

}  // namespace mkernel::test
