// From what the warps of a launch wrote down (cuda/sync/trace.h) to the events of a Trace. Host side, plain
// C++: no CUDA header needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/sync/trace.h"
#include "mkernel/trace.h"

namespace mkernel::kernels {

/// What a launch wrote, in the words of a Trace. `events`: [tracks][kept], copied from the device;
/// `to_monotonic_ns` is added to its times. The lanes of a warp wait side by side: their waits
/// become one, that of the lane which came last.
std::vector<TraceEvent> device_timeline(std::span<const DeviceTrack> tracks,
                                        std::span<const DeviceTraceEvent> events, std::size_t kept,
                                        std::int64_t to_monotonic_ns);

}  // namespace mkernel::kernels
