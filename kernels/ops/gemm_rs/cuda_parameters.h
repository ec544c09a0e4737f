// What GEMM+RS's kernel is given, and its launch: between the operation and the files that nvcc builds, one
// per tile.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/gemm/sm90_tile.h"
#include "kernels/memory/tensor_map.h"
#include "kernels/ops/gemm_rs/cuda_plan.h"
#include "kernels/schedule/owner_steps.h"
#include "kernels/schedule/raster.h"
#include "kernels/schedule/reduce_units.h"
#include "kernels/sync/host_watch.h"
#include "kernels/sync/launch_control.h"
#include "mkernel/ops.h"
#include "proto/abi/status.h"

struct CUstream_st;

namespace mkernel::kernels {

struct GemmRsParameters {
  TensorMap a;             ///< [m, k]
  TensorMap b;             ///< [k, n]
  const TensorMap* slots;  ///< [epoch parity][owner]: this rank's slot there; in device memory
  std::uint64_t* claimed;  ///< units that warps have asked for, over all launches; in device memory
  LaunchControl* control;
  HostWatch host;
  std::uint64_t deadline_ns;
  // Of PushReducePlan, what the kernel would need divisions for.
  std::uint64_t* ready_there[kMaxGemmRsOwners];  ///< by owner: the words that this rank writes there
  std::int32_t first_row[kMaxGemmRsOwners];      ///< by owner
  std::int32_t rows_of[kMaxGemmRsOwners];        ///< by owner
  const std::uint64_t* ready;                    ///< words that are written here, of source 0
  const std::byte* slots_here[2];                ///< [epoch parity]: of source 0
  std::uint64_t ready_words;                     ///< from source to source
  std::uint64_t slot_bytes;                      ///< from source to source
  std::byte* c;                                  ///< own rows
  std::int32_t own_rows;
  std::int32_t columns;
  OwnerSteps steps;
  Raster raster;
  ReduceUnits units;
  std::int32_t k_blocks;
  std::int32_t reduce_ctas;
};

/// Queues the kernel for the types and the layout of `shape` on `stream`.
template <Sm90Tile kTile>
Status launch_gemm_rs(const GemmShape& shape, const GemmRsParameters& parameters, std::int32_t ctas,
                      CUstream_st* stream);

}  // namespace mkernel::kernels
