// What the kernel of the grouped GEMM is given.
#pragma once

#include <cstdint>

#include "kernels/cuda/memory/tensor_map.h"
#include "kernels/ops/grouped_gemm/groups.h"
#include "mkernel/device_endpoint.h"

namespace mkernel::kernels {

struct GroupedGemmPlan;

/// Why a launch was refused; the host reads it once the stream is done.
struct GroupedGemmRefusal {
  std::uint64_t launch = 0;  ///< the last one that was refused, counted from 1; 0: none was
  BadEnd why;
};

/// Memory of this rank alone.
struct GroupedGemmScratch {
  /// The next task, by parity of the epoch: a launch uses one, and zeroes the other for the next launch.
  std::uint64_t next_task[2] = {};
  GroupedGemmRefusal refusal;
};

struct GroupedGemmParameters {
  TensorMap a;      ///< [max_rows, k]
  TensorMap low_a;  ///< the same in boxes of Sm90Task::kLowBoxRows
  TensorMap b;      ///< [groups][k, n]
  device::Endpoint endpoint;
  const std::int32_t* ends;  ///< [groups]
  std::byte* c;              ///< [max_rows, n]
  GroupedGemmScratch* scratch;
  std::int32_t max_rows, k, n, groups;
  std::int32_t matrix_rows;   ///< rows of memory from one matrix of b to the next
  std::int32_t column_pairs;  ///< pairs of columns of tiles
  std::int32_t band_blocks;   ///< blocks of rows that stay in the L2 (plan/tile_pairs.h)
};

/// All that is the same in every launch.
GroupedGemmParameters grouped_gemm_parameters(const GroupedGemmPlan& plan, GroupedGemmScratch* scratch);

/// What the maps are of, one box per load of the kernel.
MatrixView grouped_gemm_a_view(const GroupedGemmPlan& plan, const void* a);
MatrixView grouped_gemm_low_a_view(const GroupedGemmPlan& plan, const void* a);
MatrixView grouped_gemm_b_view(const GroupedGemmPlan& plan, const void* b);

}  // namespace mkernel::kernels
