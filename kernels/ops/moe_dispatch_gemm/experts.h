// The products of one rank's experts on the cpu executor: x w1, or (silu(g) * u) w2 with [g | u] = x w1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cpu/gemm/gemm.h"
#include "kernels/ops/moe_dispatch_gemm/plan.h"

namespace mkernel::kernels {

/// What one compute thread needs for a block of rows; reused for every block.
struct ExpertScratch {
  explicit ExpertScratch(const MoePlan& plan);

  std::vector<std::byte> rows;    // [kBlockRows, hidden], io type: the gathered block
  std::vector<float> widened;     // [kBlockRows, max(hidden, intermediate)]
  std::vector<float> first;       // [kBlockRows, 2 * intermediate], empty without a second product
  std::vector<std::byte> hidden;  // [kBlockRows, intermediate], io type
};

/// The weights of a rank's experts in fp32. Allocation may throw std::bad_alloc.
class ExpertLayer {
 public:
  ExpertLayer(const MoePlan& plan, std::uint32_t rank);

  /// Widens part `part` of `parts` of the weights; all parts before any run() of a launch.
  void widen(const void* w1, const void* w2, int part, int parts);
  /// out [rows, n] fp32 = expert(scratch.rows). `expert` counts among the rank's own. What lies between the
  /// two products is rounded to the io type, as tensor cores take it.
  void run(std::int64_t expert, std::int64_t rows, ExpertScratch& scratch, float* out) const;

 private:
  const MoePlan& plan_;
  std::vector<CpuGemm> first_;   // by expert
  std::vector<CpuGemm> second_;  // by expert, empty without a second product
};

}  // namespace mkernel::kernels
