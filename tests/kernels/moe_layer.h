// The mixture-of-experts layer on a fabric in one process, for its tests: random inputs, launches whose every
// element is checked against fp64, launches that every rank refuses.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/ops/make.h"
#include "mkernel/ops.h"
#include "tests/support/fake_fabric.h"
#include "tests/support/moe_cases.h"
#include "tests/support/moe_reference.h"

namespace mkernel::test {

using Tensor = std::vector<std::uint16_t>;
/// The operation on every rank of a fabric.
class MoeLayer {
 public:
  MoeLayer(const MoeShape& shape, const FabricOptions& options, const kernels::MoeOptions& plan = {});

  const MoeShape& shape() const { return shape_; }
  FakeFabric& fabric() { return fabric_; }
  std::uint32_t world() const { return fabric_.world(); }
  MoeOperation& operation(std::uint32_t rank) { return *operations_[rank]; }
  /// Whether the next launches have the two halves of w1 as two operands.
  void set_w1_up(bool given);

  /// Inputs of every rank: `tokens(rank)` tokens each.
  std::vector<MoeInput> inputs(const Router& router, const TokensOfRank& tokens, std::uint64_t seed) const;
  std::vector<MoeInput> inputs(const Router& router, std::int64_t each, std::uint64_t seed) const;

  /// A launch on one rank; y is poisoned before.
  Status run(std::uint32_t rank, const MoeInput& input, Tensor& y,
             std::chrono::milliseconds deadline = std::chrono::minutes(2));
  /// One launch on all ranks, checked element by element; the outputs by rank.
  std::vector<Tensor> run_checked(const std::vector<MoeInput>& inputs);
  /// One launch that every rank refuses with this code and exactly these words, before a row is sent and with
  /// y as it was.
  void run_refused(const std::vector<MoeInput>& inputs, StatusCode code, const std::string& text);

 private:
  MoeShape shape_;
  FakeFabric fabric_;
  MoeWeights weights_;
  MoeWeightOperands operands_;
  std::vector<kernels::SymmetricView> workspace_;
  std::vector<std::unique_ptr<MoeOperation>> operations_;
};

struct MoeNodes {
  std::uint32_t nodes, ranks;
};

}  // namespace mkernel::test
