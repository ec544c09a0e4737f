// cuBLAS, loaded when a benchmark compares with it. Plain C++: no CUDA header needed.
#pragma once

#include <memory>

#include "mkernel/ops.h"
#include "proto/abi/status.h"
#include "tools/mkbench/gpu_matrix.h"

struct CUstream_st;

namespace mkernel::bench {

class Cublas {
 public:
  /// On the current GPU, with a workspace of its own, so that products can be captured in graphs; `stream`
  /// outlives it. kUnavailable when no libcublas of CUDA 12 or 13 can be loaded.
  static Result<Cublas> open(CUstream_st* stream);

  /// Products from now on are for `sms` multiprocessors: cuBLAS chooses its kernels and grids for so many. It
  /// is no limit: a kernel that has more tiles than that may still run on all of them.
  Status target_sms(int sms);

  /// c[m, n] = a[m, k] x b in the layout of `shape`, sums in fp32; c in the type of a and b.
  /// Asynchronous.
  Status gemm(const GemmArguments& arguments, const GemmShape& shape) const;

 private:
  struct Api;
  struct Destroy {
    const Api* api;
    void operator()(void* handle) const;
  };
  Cublas() = default;

  std::unique_ptr<void, Destroy> handle_{nullptr, Destroy{nullptr}};
  GpuBuffer workspace_;
};

}  // namespace mkernel::bench
