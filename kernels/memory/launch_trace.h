// Memory of the GPU that the launches of one operation write their timeline into.
#pragma once

#include <cstdint>

#include "kernels/memory/device_buffer.h"
#include "kernels/sync/device_trace.h"
#include "mkernel/trace.h"
#include "proto/abi/status.h"

struct CUstream_st;

namespace mkernel::kernels {

class LaunchTrace {
 public:
  /// Of the current device, for kernels with no more CTAs than it has multiprocessors.
  static Result<LaunchTrace> make();

  /// For the parameters of a launch.
  DeviceTrace on_device() const;
  /// In front of a launch: forgets the one before. Asynchronous; a graph repeats it.
  Status clear(CUstream_st* stream) const;
  /// What the last launch wrote, once it is over. Blocks until it is told.
  Status tell(Trace& trace) const;

 private:
  std::uint32_t tracks_ = 0;
  DeviceBuffer headers_;  ///< DeviceTrack [tracks_]
  DeviceBuffer events_;   ///< DeviceTraceEvent [tracks_][capacity]
};

}  // namespace mkernel::kernels
