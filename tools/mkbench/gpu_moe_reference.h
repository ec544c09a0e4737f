// The output of a mixture of experts computed apart from the operation, expert by expert on this rank's GPU.
// Plain C++: no CUDA header needed.
#pragma once

#include <cstdint>
#include <vector>

#include "mkernel/ops.h"
#include "proto/abi/status.h"
#include "tools/mkbench/gpu_matrix.h"
#include "tools/mkbench/moe_inputs.h"

struct CUstream_st;

namespace mkernel::bench {

/// Of max_tokens tokens. Products are summed in fp64, the activations between them rounded as the operation
/// rounds them.
class GpuMoeReference {
 public:
  /// `stream` outlives it and carries all its work.
  static Result<GpuMoeReference> make(const MoeShape& shape, CUstream_st* stream);

  /// From now on of other tokens.
  Status begin(const MoeRouting& routing);
  /// Adds what `expert` with the matrices w1 and w2 (in the layout of the shape) makes of the tokens that
  /// chose it. All in memory of the GPU; they may be overwritten in stream order.
  Status add(std::int32_t expert, const void* x, const void* w1, const void* w2);
  /// Adds what the shared expert makes of all tokens, when the shape has one.
  Status add_shared(const void* x, const void* w1, const void* w2);
  /// y against the sum of all that was added. Synchronous.
  Result<ProductCheck> compare(const void* y);

 private:
  GpuMoeReference() = default;
  /// The tokens that go through an expert.
  struct Chosen {
    const std::int32_t* entries;  ///< [rows]; null: all tokens in order
    std::int64_t rows;
    int topk;  ///< entries of a token
  };
  Status add(const Chosen& chosen, std::int64_t inner, const void* x, const void* w1, const void* w2);
  template <typename T>
  Status add_as(const Chosen& chosen, std::int64_t inner, const void* x, const void* w1, const void* w2);

  MoeShape shape_;
  CUstream_st* stream_ = nullptr;
  std::vector<std::int64_t> begin_;  ///< by expert and one more: where its entries begin
  GpuBuffer entries_;                ///< int32, numbers of entries of the routing, by expert
  GpuBuffer weights_;                ///< fp32, by entry
  GpuBuffer first_;                  ///< fp32, of one expert: results of the first of two products
  GpuBuffer activation_;             ///< of one expert, in the io type
  GpuBuffer sum_, magnitude_;        ///< fp32 [tokens, n]
};

}  // namespace mkernel::bench
