// Rows of a rank, copied on the GPU out of a tensor of the whole sequence. Plain C++: no CUDA header needed.
#pragma once

#include <cstdint>

#include "kernels/plan/positions.h"
#include "proto/abi/status.h"

struct CUstream_st;

namespace mkernel::bench {

/// Rows of `row_bytes` at `held` positions of each of `count` blocks of `sequence` rows.
struct HeldRows {
  kernels::Positions held;
  std::int64_t count, sequence, row_bytes;

  /// `whole` [count, sequence, row_bytes] to `own` [count, positions, row_bytes]. Asynchronous.
  Status take(const void* whole, void* own, CUstream_st* stream) const;
};

}  // namespace mkernel::bench
