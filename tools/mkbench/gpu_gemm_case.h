// AG+GEMM, GEMM+RS or GEMM+AR on this rank's GPU, as the benchmark and the tests see it: sets of operands
// that launches go through in turn, fresh inputs for each, and the check of every element against fp64
// products of the inputs of all ranks, which are made again from their seeds.
#pragma once

#include <cstdint>
#include <vector>

#include "mkernel/ops.h"
#include "proto/abi/status.h"
#include "tools/mkbench/gpu_matrix.h"

struct CUstream_st;

namespace mkernel::bench {

class GpuGemmCase {
 public:
  /// Allocates `sets` sets on the current GPU. `stream` outlives the case and carries all its work.
  static Result<GpuGemmCase> make(OpKind kind, const GemmShape& shape, std::uint32_t world,
                                  std::uint32_t ranks_per_node, std::uint32_t rank, int sets,
                                  CUstream_st* stream);

  OpKind kind() const { return kind_; }
  const GemmShape& shape() const { return shape_; }
  int sets() const { return static_cast<int>(sets_.size()); }
  GemmArguments arguments(int set) const;

  /// Inputs of `iteration` into the set, its output poisoned. Asynchronous.
  Status fill(int set, std::uint64_t iteration);
  /// Of what the last launch on the set left in c. Of GEMM+AR the rows of this rank's block: that the ranks
  /// hold the same is for digest() to say. Synchronous.
  Result<ProductCheck> verify(int set);
  /// Of all of c: equal on every rank that holds the same elements. Synchronous.
  Result<std::uint64_t> digest(int set) const;

 private:
  struct Set {
    std::uint64_t iteration = 0;
    GpuBuffer a, b, c;
  };
  /// Operands of all ranks, for verify(): of AG+GEMM all rows of a, of the others every rank's a and b.
  struct Scratch {
    std::vector<GpuBuffer> a, b;
  };
  enum Operand : std::uint64_t { kA = 1, kB = 2 };

  GpuGemmCase() = default;
  Status allocate(int sets);
  std::int64_t a_rows(std::uint32_t rank) const;
  Range checked_rows() const;
  Status fill_operand(void* data, std::uint64_t iteration, std::uint32_t rank, Operand which) const;
  Result<ProductCheck> check_gathered(const Set& set);
  Result<ProductCheck> check_reduced(const Set& set);

  OpKind kind_{};
  GemmShape shape_;
  std::uint32_t world_ = 1, ranks_per_node_ = 1, rank_ = 0;
  CUstream_st* stream_ = nullptr;
  std::vector<Set> sets_;
  Scratch scratch_;
};

}  // namespace mkernel::bench
