// What a kernel is given that multiplies and has the partial tiles summed at their owners: filled by
// TileReduceOperation, read by tile_reduce.cuh.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/memory/tensor_map.h"
#include "kernels/ops/exchange/tile_reduce_plan.h"
#include "kernels/schedule/owner_steps.h"
#include "kernels/schedule/raster.h"
#include "kernels/schedule/reduce_units.h"
#include "kernels/sync/device_trace.h"
#include "kernels/sync/host_watch.h"
#include "kernels/sync/launch_control.h"

namespace mkernel::kernels {

struct TileReduceParameters {
  TensorMap a;             ///< [m, k]
  TensorMap b;             ///< [k, n]
  const TensorMap* slots;  ///< [epoch parity][owner]: this rank's slot there; in device memory
  std::uint64_t* claimed;  ///< units that warps have asked for, over all launches; in device memory
  LaunchControl* control;
  HostWatch host;
  std::uint64_t deadline_ns;
  // Of PushReducePlan, what the kernel would need divisions for.
  std::uint64_t* ready_there[kMaxReduceOwners];  ///< by owner: the words that this rank writes there
  std::int32_t first_row[kMaxReduceOwners];      ///< by owner
  std::int32_t rows_of[kMaxReduceOwners];        ///< by owner
  const std::uint64_t* ready;                    ///< words that are written here, of source 0
  const std::byte* slots_here[2];                ///< [epoch parity]: of source 0
  std::uint64_t ready_words;                     ///< from source to source
  std::uint64_t slot_bytes;                      ///< from source to source
  std::byte* own_c;                              ///< c's rows of this rank
  std::int32_t own_rows;
  std::int32_t columns;
  OwnerSteps steps;
  Raster raster;
  ReduceUnits units;
  std::int32_t k_blocks;
  std::int32_t reduce_ctas;
  DeviceTrace trace;
};

}  // namespace mkernel::kernels
