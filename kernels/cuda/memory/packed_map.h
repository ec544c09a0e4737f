// Tensor maps whose boxes lie in shared memory as plain rows, for kernels that copy and do not multiply.
#pragma once

#include "kernels/cuda/memory/tensor_map.h"

namespace mkernel::kernels {

/// As encode_tensor_map(), without the swizzle: the rows of a box lie in shared memory one behind the other,
/// `box_columns` elements each, at most 256 and a multiple of 8.
Result<TensorMap> encode_packed_map(const MatrixView& view, const char* name);

}  // namespace mkernel::kernels
