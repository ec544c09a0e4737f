// From a kernel template to the kernel of a shape; included by the files that nvcc builds.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/launch/cooperative_kernel.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

/// `kernel`, whose launches have the threads, the clusters and at least `shared_bytes` of what Config says.
template <class Config, class Parameters>
CooperativeKernel cooperative_kernel(void (*kernel)(Parameters), std::size_t shared_bytes) {
  return {.function = reinterpret_cast<const void*>(kernel),
          .threads = Config::kThreads,
          .cluster = Config::kCluster,
          .shared_bytes = shared_bytes};
}

/// Calls `with.operator()<type, layout of b>()` for those of `shape`.
template <class With>
auto with_types(const GemmShape& shape, const With& with) {
  const bool row_major = shape.b_layout == Layout::kRowMajor;
  if (shape.dtype == DataType::kBf16) {
    return row_major ? with.template operator()<DataType::kBf16, Layout::kRowMajor>()
                     : with.template operator()<DataType::kBf16, Layout::kColumnMajor>();
  }
  return row_major ? with.template operator()<DataType::kF16, Layout::kRowMajor>()
                   : with.template operator()<DataType::kF16, Layout::kColumnMajor>();
}

}  // namespace mkernel::kernels
