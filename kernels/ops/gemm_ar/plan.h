// Plan of GEMM+AR: GEMM+RS, and where its sums go.
#pragma once

#include <cstdint>

#include "kernels/plan/push_sums_plan.h"
#include "kernels/plan/tile_reduce_plan.h"
#include "kernels/plan/topology.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

/// Pure; the same on every rank but for `product.owners`.
struct GemmArPlan {
  TileReducePlan product;
  PushSumsPlan sums;

  std::uint64_t word_bytes() const { return sums.words_end(); }
  std::uint64_t data_bytes() const { return sums.end(); }
  /// The same of kernels. Where these mark sums, the sums lie behind the words, and marked slots behind them.
  std::uint64_t kernel_word_bytes() const {
    if (product.reduce.marked) return product.reduce.marked_end();
    return product.marks_sums() ? sums.marked_end() : word_bytes();
  }
  std::uint64_t kernel_data_bytes() const {
    return product.marks_sums() ? product.kernel_data_bytes() : data_bytes();
  }
  /// Of the group's channels, between rail peers only: partials, finished sums.
  std::uint32_t lanes() const { return product.units.others > 0 ? 2 : 0; }
  /// Units of its rail peers that a rank takes from the wire and hands on in its node.
  std::int32_t forwards() const { return product.units.others * sums.units; }
  /// Units of the other owners that a rank copies into its c, each owner's in the order in which they come.
  std::int32_t copies() const { return (product.reduce.sources - 1) * product.reduce.nodes() * sums.units; }
  /// Bytes that this rank puts in every launch.
  std::uint64_t wire_bytes() const {
    const auto own = static_cast<std::uint64_t>(product.packed_units(product.rank()));
    return product.wire_bytes() + product.units.others * own * PushSumsPlan::kUnitBytes;
  }

  /// Errors: TileReducePlan::make().
  static Result<GemmArPlan> make(const GemmShape& shape, const Topology& topology, std::uint32_t rank,
                                 const Machine& machine, const TileReduceOptions& options = {});
};

}  // namespace mkernel::kernels
