// Matrices on the GPU for benchmarks and tests: random inputs, poisoned outputs, and the check of a product
// against fp64. Plain C++: no CUDA header needed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "mkernel/ops.h"
#include "proto/abi/status.h"

struct CUstream_st;

namespace mkernel::bench {

/// Device memory that frees itself.
class GpuBuffer {
 public:
  static Result<GpuBuffer> allocate(std::uint64_t bytes);
  void* get() const { return memory_.get(); }
  std::uint64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(void* memory) const;
  };
  std::unique_ptr<void, Free> memory_;
  std::uint64_t bytes_ = 0;
};

/// Fills `count` elements of `type` with values of [-1, 1) times `scale` that depend on seed and index only.
/// Asynchronous.
Status fill_random(void* data, DataType type, std::uint64_t count, std::uint64_t seed, CUstream_st* stream,
                   float scale = 1);

/// Fills with a NaN pattern of every type: an element that nobody writes is found. Asynchronous.
Status poison(const GpuBuffer& buffer, CUstream_st* stream);

/// A sum over all words of the buffer and their places: equal for equal contents. Synchronous.
Result<std::uint64_t> digest_of(const GpuBuffer& buffer, CUstream_st* stream);

/// What a comparison with the fp64 product found.
struct ProductCheck {
  std::uint64_t elements = 0;     ///< that were looked at: all
  std::uint64_t wrong = 0;        ///< elements beyond the bound, or NaN
  std::int64_t first_wrong = -1;  ///< one of them, row * n + column
  double relative_error = 0;      ///< ||c - ref|| / ||ref||
  double worst = 0;               ///< largest |c - ref| / bound
};

/// Compares every element of c with a x b in fp64; bound: u |ref| + k 2^-24
/// sum |a b|, u the rounding unit of c's type. Synchronous.
Result<ProductCheck> check_product(const GemmArguments& arguments, const GemmShape& shape,
                                   CUstream_st* stream);

/// The same for rows of a sum over ranks: c[rows, n] with the sum of the products of all `partials` (a [m, k]
/// and b of each rank, node by node; memory of other GPUs is read over peer access). Each product may have
/// been rounded once, and with more than one node, each of `ranks_per_node`, the sum of a node's: bound u
/// |ref| + u sum_ranks |a x b| (+ u sum_nodes |its sum|) + k ranks 2^-24 sum |a b|. At most 16 ranks.
Result<ProductCheck> check_reduced_product(const std::vector<GemmArguments>& partials,
                                           std::uint32_t ranks_per_node, const void* c,
                                           const GemmShape& shape, Range rows, CUstream_st* stream);

/// Why no GPU of compute capability 9.0 can be used here; OK when one can.
Status hopper_present();

/// "NVIDIA H200", of GPU 0; "unknown" without one.
std::string gpu_name();

}  // namespace mkernel::bench
