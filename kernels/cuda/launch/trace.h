// Memory of the GPU that the launches of one operation write their timeline into.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/cuda/memory/buffer.h"
#include "kernels/cuda/memory/own_stream.h"
#include "kernels/cuda/sync/trace.h"
#include "mkernel/trace.h"
#include "proto/abi/status.h"

struct CUstream_st;

namespace mkernel::kernels {

class LaunchTrace {
 public:
  /// Loads on the current device what tell() runs there (load_kernel()). make() and clear() run no kernel, so
  /// that a launch which is traced waits for none.
  static Status load();
  /// Of the current device, for kernels with no more CTAs than it has multiprocessors.
  static Result<LaunchTrace> make();

  /// For the parameters of a launch.
  DeviceTrace on_device() const;
  /// In front of a launch: forgets the one before. Asynchronous, and by a copy engine: there is no kernel to
  /// be loaded or started.
  Status clear(CUstream_st* stream) const;
  /// What the last launch wrote, once it is over. Blocks until it is told.
  Status tell(Trace& trace) const;

 private:
  std::uint32_t tracks_ = 0;
  DeviceBuffer headers_;                    ///< DeviceTrack [tracks_]
  DeviceBuffer events_;                     ///< DeviceTraceEvent [tracks_][capacity]
  std::unique_ptr<void, FreePinned> none_;  ///< zeros, as many as headers_ has
  OwnStream stream_;                        ///< of what is read
};

}  // namespace mkernel::kernels
