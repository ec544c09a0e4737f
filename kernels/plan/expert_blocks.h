// The rows of a mixture of experts, by expert: which rank owns which expert, how the rows of an expert are
// cut into blocks, and where the rows of every expert begin in the pool of its owner. Everything follows from
// counts[world][experts], the rows that each rank sends to each expert, so that all ranks that hold the
// counts hold the same table. Pure functions, the same on host and device.
#pragma once

#include <cstdint>

#include "kernels/base/divisor.h"
#include "proto/abi/host_device.h"

namespace mkernel::kernels {

/// Experts are split over the ranks as block_range(experts, world, rank) does it: an owner has a contiguous
/// range, and where `experts` is no multiple of the world some owners have one expert more than others.
/// experts x world is below 2^31: the kernel asks often, and divides 32 bits in a quarter of the time of 64.
struct ExpertOwners {
  std::int32_t experts = 1;
  std::int32_t world = 1;

  MK_HOST_DEVICE std::int32_t first(std::int32_t rank) const { return experts * rank / world; }
  MK_HOST_DEVICE std::int32_t count(std::int32_t rank) const { return first(rank + 1) - first(rank); }
  MK_HOST_DEVICE std::int32_t owner(std::int32_t expert) const {
    return ((expert + 1) * world - 1) / experts;
  }
  /// Number of an expert among those of its owner. Owners compute their experts in this order.
  MK_HOST_DEVICE std::int32_t local(std::int32_t expert) const { return expert - first(owner(expert)); }
  /// Of the owner that has most.
  MK_HOST_DEVICE std::int32_t max_local() const { return (experts + world - 1) / world; }
};

/// An expert's rows are cut into blocks of `block` rows, one row of tiles each. The last one is padded to a
/// multiple of `unit` rows, the height of the lowest tile: 64 of 128. So a block never mixes experts.
struct ExpertBlockRows {
  Divisor block = 128;  ///< a multiple of `unit`; 256 where the CTAs of a cluster stand on each other
  Divisor unit = 64;

  MK_HOST_DEVICE std::int32_t padded(std::int32_t rows) const { return unit.ceil(rows) * unit; }
  MK_HOST_DEVICE std::int32_t blocks(std::int32_t rows) const { return block.ceil(rows); }
  /// The most blocks that `rows` padded rows of `experts` experts can be: only the last one of an expert is
  /// lower than the others.
  MK_HOST_DEVICE std::int32_t max_blocks(std::int32_t rows, std::int32_t experts) const {
    const std::int32_t lowest = rows / unit;
    const std::int64_t mixed = (std::int64_t{rows} + std::int64_t{experts} * (block - unit)) / int{block};
    return lowest < mixed ? lowest : static_cast<std::int32_t>(mixed);
  }
};

/// The part of a table that concerns one owner. Its experts count locally, from 0; so do its blocks, and the
/// rows of its pool.
struct OwnedExperts {
  struct Block {
    std::int32_t expert = 0;     ///< local
    std::int32_t first_row = 0;  ///< the row of the pool that it begins with
    std::int32_t rows = 0;       ///< without padding
  };

  std::int32_t experts = 0;
  ExpertBlockRows cut;
  const std::int32_t* rows = nullptr;           ///< [experts]
  const std::int32_t* rows_before = nullptr;    ///< [experts + 1]; the first one is whatever lies before
  const std::int32_t* blocks_before = nullptr;  ///< [experts + 1], likewise

  /// Padded rows of all experts.
  MK_HOST_DEVICE std::int32_t pool_rows() const { return first_row(experts); }
  MK_HOST_DEVICE std::int32_t all_blocks() const { return first_block(experts); }
  MK_HOST_DEVICE std::int32_t first_row(std::int32_t expert) const {
    return rows_before[expert] - rows_before[0];
  }
  MK_HOST_DEVICE std::int32_t first_block(std::int32_t expert) const {
    return blocks_before[expert] - blocks_before[0];
  }
  MK_HOST_DEVICE std::int32_t blocks(std::int32_t expert) const {
    return first_block(expert + 1) - first_block(expert);
  }
  /// Whose block it is: a binary search. 0 <= `block` < all_blocks().
  MK_HOST_DEVICE std::int32_t expert_of(std::int32_t block) const {
    std::int32_t low = 0, high = experts;  // first_block(low) <= block < first_block(high)
    while (high - low > 1) {
      const std::int32_t middle = (low + high) / 2;
      (first_block(middle) <= block ? low : high) = middle;
    }
    return low;
  }
  MK_HOST_DEVICE Block block(std::int32_t index) const { return block(expert_of(index), index); }
  /// The same, when it is known to be one of `expert`.
  MK_HOST_DEVICE Block block(std::int32_t expert, std::int32_t index) const {
    const std::int32_t before = (index - first_block(expert)) * cut.block;
    const std::int32_t left = rows[expert] - before;
    return {expert, first_row(expert) + before, left < cut.block ? left : std::int32_t{cut.block}};
  }
  /// The block of a row, which is one of `expert`.
  MK_HOST_DEVICE std::int32_t block_of(std::int32_t expert, std::int32_t pool_row) const {
    return first_block(expert) + (pool_row - first_row(expert)) / cut.block;
  }
};

/// The rows of all experts of all owners. Both sums run over all experts, so that a scan of a CTA makes them.
struct ExpertTable {
  ExpertOwners owners;
  ExpertBlockRows cut;
  const std::int32_t* rows = nullptr;           ///< [experts], of all sources
  const std::int32_t* rows_before = nullptr;    ///< [experts + 1], padded rows of all experts before
  const std::int32_t* blocks_before = nullptr;  ///< [experts + 1]

  MK_HOST_DEVICE OwnedExperts of_rank(std::int32_t rank) const {
    const std::int32_t first = owners.first(rank);
    return {owners.count(rank), cut, rows + first, rows_before + first, blocks_before + first};
  }
  /// Of the pool of the expert's owner.
  MK_HOST_DEVICE std::int32_t first_row(std::int32_t expert) const {
    return rows_before[expert] - rows_before[owners.first(owners.owner(expert))];
  }
  /// Whether an expert ends beyond the `capacity` rows of its owner's pool. The first expert of all that does
  /// is what every rank reports.
  MK_HOST_DEVICE bool overflows(std::int32_t expert, std::int32_t capacity) const {
    return first_row(expert) + cut.padded(rows[expert]) > capacity;
  }
};

}  // namespace mkernel::kernels
