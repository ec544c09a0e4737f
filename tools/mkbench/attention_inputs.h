// Operands of attention and of its backward pass, of each rank alone or of all ranks together, as the
// references of the cpu executor's benchmark need them: those of every rank, in the order of the sequence.
#pragma once

#include <cstdint>
#include <vector>

#include "mkernel/ops.h"

namespace mkernel::bench {

class AttentionInputs {
 public:
  enum Tensor : std::uint64_t { kQ = 1, kK = 2, kV = 3, kDOut = 4 };

  /// `world`, `rank`: of an operation of each rank alone those of a world of one.
  AttentionInputs(OpKind kind, const AttentionShape& shape, std::uint32_t world, std::uint32_t rank)
      : kind_(kind), shape_(shape), world_(world), rank_(rank) {}

  const AttentionShape& shape() const { return shape_; }
  /// Where the rows of this rank stand, in their order.
  std::vector<std::int64_t> positions() const { return positions(rank_); }
  std::int64_t heads(Tensor which) const {
    return which == kQ || which == kDOut ? shape_.heads : shape_.kv_heads;
  }
  double scale() const;

  /// What this rank has of a tensor, [batch, positions, heads, head_dim].
  std::vector<std::uint16_t> own(std::uint64_t iteration, Tensor which) const {
    return of_rank(iteration, rank_, which);
  }
  /// What all ranks have, [batch, heads, sequence, head_dim].
  std::vector<float> in_sequence_order(std::uint64_t iteration, Tensor which) const;

 private:
  std::vector<std::int64_t> positions(std::uint32_t rank) const;
  std::vector<std::uint16_t> of_rank(std::uint64_t iteration, std::uint32_t rank, Tensor which) const;

  OpKind kind_;
  AttentionShape shape_;
  std::uint32_t world_, rank_;
};

}  // namespace mkernel::bench
