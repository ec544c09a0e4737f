#include "tools/mkbench/gpu_rows.h"

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kernels/cuda/memory/error.h"

namespace mkernel::bench {

Status HeldRows::take(const void* whole, void* own, CUstream_st* stream) const {
  const auto bytes = [this](std::int64_t rows) { return static_cast<std::size_t>(rows * row_bytes); };
  for (int part = 0; part < 2; ++part) {
    const Range from = held.part[static_cast<std::size_t>(part)], to = held.rows(part);
    if (from.size() == 0) continue;
    MK_RETURN_IF_ERROR(kernels::cuda_status(
        cudaMemcpy2DAsync(static_cast<std::byte*>(own) + bytes(to.begin), bytes(held.size()),
                          static_cast<const std::byte*>(whole) + bytes(from.begin), bytes(sequence),
                          bytes(from.size()), static_cast<std::size_t>(count), cudaMemcpyDeviceToDevice,
                          stream),
        "rows of a rank"));
  }
  return {};
}

}  // namespace mkernel::bench
