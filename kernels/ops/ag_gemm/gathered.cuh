// The kernel that copies gathered rows out of the workspace.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/lent_workspace.h"
#include "kernels/ops/ag_gemm/parameters.h"

namespace mkernel::kernels {

inline constexpr int kGatheredThreads = 256;

/// Whole warp.
__device__ __forceinline__ void copy_bytes(std::byte* to, const std::byte* from, std::int64_t bytes) {
  auto* out = reinterpret_cast<uint4*>(to);
  const auto* in = reinterpret_cast<const uint4*>(from);
#pragma unroll 4
  for (std::int64_t i = threadIdx.x % 32; i < bytes / std::int64_t{sizeof(uint4)}; i += 32) out[i] = in[i];
}

/// CTAs of a column of the grid share the rows of one source; a warp takes a part of a row at a time.
inline __global__ __launch_bounds__(kGatheredThreads) void copy_gathered_kernel(
    const __grid_constant__ GatheredRows g) {
  const LentControl& control = *reinterpret_cast<const LentControl*>(g.lent);
  if (control.stopped != 0) return;
  const std::byte* half = g.lent + lent_half_at(control.launches - 1, g.half_bytes);
  const RowParts& row = g.gather.row;
  const auto source = static_cast<std::int32_t>(blockIdx.y);
  const bool own = source == g.rank;
  const std::int32_t parts = own ? 1 : static_cast<std::int32_t>(row.parts);
  std::byte* out = g.out + g.gather.first_row(source) * row.row_bytes;
  const std::int64_t pieces = g.gather.rows_of(source) * parts;
  const std::int64_t warps = std::int64_t{gridDim.x} * (kGatheredThreads / 32);
  for (std::int64_t i = (blockIdx.x * kGatheredThreads + threadIdx.x) / 32; i < pieces; i += warps) {
    const std::int64_t r = i / parts;
    const auto part = static_cast<std::int32_t>(i % parts);
    if (own) {
      copy_bytes(out + r * row.row_bytes, g.own + r * row.row_bytes, row.row_bytes);
    } else {
      copy_bytes(out + r * row.row_bytes + row.begin(part), half + g.gather.row_offset(source, r, part),
                 row.bytes(part));
    }
  }
}

}  // namespace mkernel::kernels
