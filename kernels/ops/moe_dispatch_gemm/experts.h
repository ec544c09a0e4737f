// The products of one rank's experts on the cpu executor, tile by tile: x w1, or (silu(g) * u) w2 with
// [g | u] = x w1. The shared expert is one more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/memory/floats.h"
#include "kernels/ops/moe_dispatch_gemm/plan.h"

namespace mkernel::kernels {

/// Room for the tiles of one compute thread in fp32; reused for every tile.
struct ExpertScratch {
  explicit ExpertScratch(const MoePlan& plan);

  /// Widens `count` rows of `elements` elements that begin `row_bytes` apart.
  void load(DataType dtype, const std::byte* from, std::int64_t count, std::int64_t elements,
            std::uint64_t row_bytes) const;

  std::int64_t stride;  ///< floats between the rows of `product`
  Floats rows;          ///< [block rows, the product's k], dense: what is multiplied
  Floats product;       ///< [block rows, stride]
};

/// The weights of one expert in fp32. Allocation may throw std::bad_alloc.
class ExpertWeights {
 public:
  /// `intermediate`: of this expert; 0 = there is only one product.
  ExpertWeights(const MoePlan& plan, std::int64_t intermediate);

  /// Widens part `part` of `parts` of matrices number `index`; all parts before any product of a launch.
  /// `up`: null when `w1` holds both halves.
  void widen(std::int64_t index, const void* w1, const void* up, const void* w2, int part, int parts);
  /// scratch.product = columns of the first product of scratch.rows [rows, hidden], gated when there is a
  /// second one.
  void first(std::int64_t rows, Range columns, const ExpertScratch& scratch) const;
  /// scratch.product = columns of the second product of scratch.rows [rows, intermediate].
  void second(std::int64_t rows, Range columns, const ExpertScratch& scratch) const;

 private:
  std::int64_t gated_columns_, hidden_, intermediate_, n_;
  CpuGemm first_;
  std::optional<CpuGemm> second_;
};

/// The weights of a rank's experts, and of the shared expert.
class ExpertLayer {
 public:
  ExpertLayer(const MoePlan& plan, std::uint32_t rank);

  /// As ExpertWeights has it, of all experts.
  void widen(const MoeArguments& arguments, int part, int parts);
  /// Those of a tile.
  const ExpertWeights& of(const ExpertTasks::Task& tile) const {
    return tile.shared ? *shared_ : experts_[static_cast<std::size_t>(tile.expert)];
  }

 private:
  std::vector<ExpertWeights> experts_;
  std::optional<ExpertWeights> shared_;
};

}  // namespace mkernel::kernels
