// The products of one rank's experts on the cpu executor, tile by tile: x w1, or (silu(g) * u) w2 with
// [g | u] = x w1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cpu/gemm/gemm.h"
#include "kernels/ops/moe_dispatch_gemm/plan.h"

namespace mkernel::kernels {

/// Room for the tiles of one compute thread in fp32; reused for every tile.
struct ExpertScratch {
  explicit ExpertScratch(const MoePlan& plan);

  /// Widens `count` rows of `elements` elements that begin `row_bytes` apart.
  void load(DataType dtype, const std::byte* from, std::int64_t count, std::int64_t elements,
            std::uint64_t row_bytes) const;

  std::int64_t stride;               ///< floats between the rows of `product`
  std::unique_ptr<float[]> rows;     ///< [block rows, hidden or intermediate], dense: what is multiplied
  std::unique_ptr<float[]> product;  ///< [block rows, stride]
};

/// The weights of a rank's experts in fp32. Allocation may throw std::bad_alloc.
class ExpertLayer {
 public:
  ExpertLayer(const MoePlan& plan, std::uint32_t rank);

  /// Widens part `part` of `parts` of the weights; all parts before any product of a launch.
  void widen(const MoeArguments& arguments, int part, int parts);
  /// scratch.product = columns of the first product of scratch.rows [rows, hidden], gated when there is a
  /// second one. `expert` counts among the rank's own.
  void first(std::int32_t expert, std::int64_t rows, Range columns, const ExpertScratch& scratch) const;
  /// scratch.product = columns of the second product of scratch.rows [rows, intermediate].
  void second(std::int32_t expert, std::int64_t rows, Range columns, const ExpertScratch& scratch) const;

 private:
  const MoePlan& plan_;
  std::vector<CpuGemm> first_;   ///< by expert
  std::vector<CpuGemm> second_;  ///< by expert, empty without a second product
};

}  // namespace mkernel::kernels
