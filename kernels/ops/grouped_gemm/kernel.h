// Which is the grouped GEMM's kernel: between the operation and the files that nvcc builds.
#pragma once

#include "kernels/base/types.h"

namespace mkernel::kernels {

struct CooperativeKernel;

/// The kernel for the type of the matrices and the layout of b.
template <DataType kType, Layout kLayoutB>
CooperativeKernel grouped_gemm_kernel_of();

}  // namespace mkernel::kernels
