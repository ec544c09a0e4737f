// The mixture of experts on this rank's GPU, as the benchmark sees it: weights that stay, sets of tokens that
// launches go through in turn, and the check of every element of the output. Other ranks' weights are made
// again from their seeds.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "mkernel/ops.h"
#include "proto/abi/status.h"
#include "tools/mkbench/gpu_matrix.h"
#include "tools/mkbench/gpu_moe_reference.h"
#include "tools/mkbench/moe_inputs.h"

struct CUstream_st;

namespace mkernel::bench {

class GpuMoeCase {
 public:
  /// Allocates `sets` sets on the current GPU. `stream` outlives the case and carries all its work.
  static Result<GpuMoeCase> make(const MoeShape& shape, std::uint32_t world, std::uint32_t rank, int sets,
                                 CUstream_st* stream);

  const MoeShape& shape() const { return shape_; }
  int sets() const { return static_cast<int>(sets_.size()); }
  MoeArguments arguments(int set) const;

  /// Tokens and routing of `iteration` into the set, its output poisoned. Asynchronous.
  Status fill(int set, std::uint64_t iteration);
  /// Of what the last launch on the set left in y. Synchronous.
  Result<ProductCheck> verify(int set);

 private:
  struct Set {
    MoeRouting routing;
    GpuBuffer x, topk, weights, y;
  };
  enum Operand : std::uint64_t { kX = 1, kW1 = 2, kW2 = 3, kRouting = 4, kSharedW1 = 5, kSharedW2 = 6 };

  GpuMoeCase() = default;
  Status allocate(int sets);
  std::uint64_t seed(std::uint64_t iteration, std::uint64_t index, Operand which) const;
  std::int64_t rows(Operand which) const;      ///< of one expert's matrix, as row-major
  std::int64_t elements(Operand which) const;  ///< likewise
  Status fill_matrix(void* to, std::int64_t expert, Operand which) const;

  MoeShape shape_;
  std::uint32_t world_ = 1, rank_ = 0;
  CUstream_st* stream_ = nullptr;
  GpuBuffer w1_, w2_;                ///< of own experts
  GpuBuffer expert_w1_, expert_w2_;  ///< of one expert, for verify()
  GpuBuffer shared_w1_, shared_w2_;
  std::vector<Set> sets_;
  std::optional<GpuMoeReference> reference_;
};

}  // namespace mkernel::bench
