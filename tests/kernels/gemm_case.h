// One GEMM operation on every rank of a fake fabric: random inputs, poisoned outputs, and a judge that
// computes every element again in fp64.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/plan/reduce_plan.h"
#include "mkernel/ops.h"
#include "tests/support/fake_fabric.h"

namespace mkernel::test {

inline constexpr OpKind kGemmKinds[] = {OpKind::kAgGemm, OpKind::kGemmRs, OpKind::kGemmAr};

/// Small tiles, chunks and windows, so that small matrices go through every path.
struct Cut {
  std::int64_t tile_rows = 8;
  std::int64_t tile_columns = 16;
  std::int64_t chunk_bytes = 300;
  std::int64_t window = 2;
  kernels::Partial partial = kernels::Partial::kIoType;
};

class GemmCase {
 public:
  GemmCase(OpKind kind, const GemmShape& shape, const FabricOptions& fabric, const Cut& cut = {});

  FakeFabric& fabric() { return fabric_; }
  GemmOperation& operation(std::uint32_t rank) { return *operations_[rank]; }

  /// New inputs from `seed`, poisoned outputs.
  void fill(std::uint64_t seed);
  /// One launch on every rank for which `starts` is set (default: all).
  std::vector<Status> run(const ExecutorOptions& options, const std::vector<bool>& starts = {});
  /// One launch on one rank, from its own thread.
  Status run_rank(std::uint32_t rank, const ExecutorOptions& options);
  /// "" or the first element that is off by more than the derived bound.
  std::string judge() const;
  /// The outputs of all ranks.
  const std::vector<std::vector<std::uint16_t>>& outputs() const { return c_; }

 private:
  std::int64_t rows(std::uint32_t rank) const;
  double element(std::uint32_t rank, std::int64_t row, std::int64_t k) const;
  double b_element(std::uint32_t rank, std::int64_t k, std::int64_t column) const;
  std::string judge_element(std::uint32_t rank, std::int64_t row, std::int64_t column) const;

  OpKind kind_;
  GemmShape shape_;
  FabricOptions options_;
  Cut cut_;
  FakeFabric fabric_;
  std::vector<std::unique_ptr<GemmOperation>> operations_;
  std::vector<std::vector<std::uint16_t>> a_, b_, c_;
};

}  // namespace mkernel::test
