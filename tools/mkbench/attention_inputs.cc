#include "tools/mkbench/attention_inputs.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "tools/mkbench/random.h"
#include "tools/mkbench/tensor.h"

namespace mkernel::bench {

double AttentionInputs::scale() const {
  return shape_.scale != 0 ? shape_.scale : 1 / std::sqrt(static_cast<double>(shape_.head_dim));
}

std::vector<std::int64_t> AttentionInputs::positions(std::uint32_t rank) const {
  std::vector<std::int64_t> list;
  const auto append = [&](Range range) {
    for (std::int64_t p = range.begin; p < range.end; ++p) list.push_back(p);
  };
  if (shape_.causal) {
    append(block_range(shape_.sequence, 2 * world_, rank));
    append(block_range(shape_.sequence, 2 * world_, 2 * world_ - 1 - rank));
  } else {
    append(block_range(shape_.sequence, world_, rank));
  }
  return list;
}

std::vector<std::uint16_t> AttentionInputs::of_rank(std::uint64_t iteration, std::uint32_t rank,
                                                    Tensor which) const {
  const auto rows = static_cast<std::int64_t>(positions(rank).size());
  return random_tensor(shape_.dtype, seed_of(static_cast<std::uint64_t>(kind_), iteration, rank, which),
                       static_cast<std::size_t>(shape_.batch * rows * heads(which) * shape_.head_dim));
}

std::vector<float> AttentionInputs::in_sequence_order(std::uint64_t iteration, Tensor which) const {
  const std::int64_t dim = shape_.head_dim, count = heads(which);
  std::vector<float> all(static_cast<std::size_t>(shape_.batch * shape_.sequence * count * dim));
  for (std::uint32_t rank = 0; rank < world_; ++rank) {
    const std::vector<float> part = to_float(shape_.dtype, of_rank(iteration, rank, which));
    const std::vector<std::int64_t> rows = positions(rank);
    for (std::int64_t batch = 0; batch < shape_.batch; ++batch) {
      for (std::size_t row = 0; row < rows.size(); ++row) {
        for (std::int64_t head = 0; head < count; ++head) {
          const float* from = part.data() + ((batch * rows.size() + row) * count + head) * dim;
          std::copy(from, from + dim,
                    all.data() + ((batch * count + head) * shape_.sequence + rows[row]) * dim);
        }
      }
    }
  }
  return all;
}

}  // namespace mkernel::bench
