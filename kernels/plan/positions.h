// Where the rows of a block of queries or keys stand in the sequence: up to two ranges of absolute positions,
// one after the other. Pure; shared by both executors.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "kernels/base/types.h"

namespace mkernel::kernels {

/// Rows 0..size()-1 of a block, as absolute positions. Both parts may be empty.
struct Positions {
  std::array<Range, 2> part{};

  std::int64_t size() const { return part[0].size() + part[1].size(); }
  std::int64_t at(std::int64_t row) const {
    return row < part[0].size() ? part[0].begin + row : part[1].begin + (row - part[0].size());
  }
  /// Rows of the block that part `index` covers.
  Range rows(int index) const {
    return index == 0 ? Range{0, part[0].size()} : Range{part[0].size(), size()};
  }
  /// The positions of rows [rows.begin, rows.end) alone.
  Positions slice(Range rows) const {
    Positions cut;
    std::int64_t before = 0;
    for (int i = 0; i < 2; ++i) {
      const std::int64_t begin = std::clamp<std::int64_t>(rows.begin - before, 0, part[i].size());
      const std::int64_t end = std::clamp<std::int64_t>(rows.end - before, 0, part[i].size());
      cut.part[i] = {part[i].begin + begin, part[i].begin + end};
      before += part[i].size();
    }
    return cut;
  }
};

/// Which rank holds which positions (ops.h, AttentionShape): causal sequences are split zigzag, so that every
/// rank has the same share of the triangle.
constexpr Positions held_positions(std::int64_t sequence, bool causal, std::int64_t world,
                                   std::int64_t rank) {
  if (!causal) return {{block_range(sequence, world, rank), Range{}}};
  return {{block_range(sequence, 2 * world, rank), block_range(sequence, 2 * world, 2 * world - 1 - rank)}};
}

}  // namespace mkernel::kernels
