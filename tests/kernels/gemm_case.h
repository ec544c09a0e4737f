// One GEMM operation on every rank of a fake fabric: random inputs, poisoned outputs, and a judge that
// computes every element again in fp64.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/plan/sm90_tile.h"
#include "mkernel/ops.h"
#include "tests/support/fake_fabric.h"

namespace mkernel::test {

inline constexpr OpKind kGemmKinds[] = {OpKind::kAgGemm, OpKind::kGemmRs, OpKind::kGemmAr};

/// How a plan is cut. The defaults are small, so that small matrices go through every path; no tile: what the
/// executor chooses by itself.
struct Cut {
  std::optional<kernels::TileSize> tile = kernels::TileSize{32, 64, 1};
  std::int32_t comm_ctas = 2;                                  ///< that push, or sum
  std::optional<std::int32_t> tail_tiles = 0, late_tiles = 0;  ///< of AG+GEMM
  std::optional<bool> to_all{};                                ///< of GEMM+AR
};

class GemmCase {
 public:
  /// A fabric and workspaces of its own, lanes from 1 on.
  GemmCase(OpKind kind, const GemmShape& shape, const FabricOptions& fabric, const Cut& cut = {});
  /// On a fabric that others use as well, to be bound.
  GemmCase(OpKind kind, const GemmShape& shape, std::shared_ptr<FakeFabric> fabric, const Cut& cut = {});
  /// To the lent workspaces of all ranks and a workspace of its own.
  void bind(const std::vector<kernels::SymmetricView>& lent, std::uint32_t first_lane);

  FakeFabric& fabric() { return *fabric_; }
  Requirements requirements() const { return operations_[0]->requirements(); }
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
  std::int64_t rows_of_c(std::uint32_t rank) const;
  /// The first column of a product when all of them lie side by side.
  std::int64_t first_column(int product) const;
  /// Dot product of a row of `rank`'s a with a column of `b_rank`'s b: the sum, and that of the magnitudes.
  struct Dot {
    double sum = 0, magnitude = 0;
  };
  Dot dot(std::uint32_t rank, std::int64_t row, std::uint32_t b_rank, std::int64_t column) const;
  std::string judge_element(std::uint32_t rank, std::int64_t row, std::int64_t column) const;
  /// Of AG+GEMM: all rows of a, as every rank asks for them.
  std::vector<std::uint16_t> gathered() const;

  OpKind kind_;
  GemmShape shape_;
  std::shared_ptr<FakeFabric> fabric_;
  std::vector<std::unique_ptr<GemmOperation>> operations_;
  std::int64_t n_;                                     ///< of all products
  std::vector<std::vector<std::uint16_t>> a_, b_, c_;  ///< those of several products one behind the other
  std::vector<std::vector<std::uint16_t>> gathered_;   ///< of AG+GEMM
  std::vector<std::vector<float>> wide_a_, wide_b_;    ///< [rows, k], [n, k]
};

}  // namespace mkernel::test
