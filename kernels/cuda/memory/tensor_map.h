// Tensor maps: what TMA needs to know of a matrix in global memory. Plain C++, which device code includes
// too: no CUDA header needed.
#pragma once

#include <cstdint>

#include "kernels/base/types.h"

namespace mkernel {
class Status;
template <typename T>
class Result;
}  // namespace mkernel

namespace mkernel::kernels {

/// An encoded map, to be handed to a kernel by value (__grid_constant__) or through global memory; the layout
/// is the driver's (CUtensorMap).
struct alignas(128) TensorMap {
  std::uint64_t opaque[16];
};

/// A row-major matrix and the box that one instruction moves. Rows of a box are 128 bytes in shared memory,
/// their 16-byte pieces swizzled (128-byte swizzle). Outside the matrix loads give 0 and stores write
/// nothing.
struct MatrixView {
  const void* base = nullptr;  ///< device address (own, or mapped from a peer), 16-byte aligned
  DataType element = DataType::kBf16;
  std::int64_t rows = 0, columns = 0;
  std::int64_t leading = 0;  ///< elements from row to row; 0 = columns. A multiple of 16 bytes.
  std::int32_t box_rows = 0, box_columns = 0;
  /// 0: a box has two coordinates. Else a third one, 0 .. first_rows - 1: the row of memory that is row 0. So
  /// one map does for many matrices of equal height that lie one behind the other, even at odd distances.
  std::int64_t first_rows = 0;
};

/// kInvalidArgument of a matrix `name` whose address is no multiple of 16 bytes.
Status check_address(const void* base, const char* name);

/// Encodes `view`; `name` ("a") is what errors call it. Needs a CUDA driver (found at run time), no stream,
/// no allocation; any thread. Errors: kInvalidArgument naming field, value and limit; kUnavailable without
/// driver.
Result<TensorMap> encode_tensor_map(const MatrixView& view, const char* name);

}  // namespace mkernel::kernels
