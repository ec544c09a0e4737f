// How many requests per second one proxy thread takes from a ring when its transport costs nothing.
#pragma once

#include <chrono>
#include <cstdint>

#include "proto/abi/status.h"

namespace mkernel::bench {

struct RingRate {
  double requests_per_second = 0;  ///< slots read, checked, scheduled and handed to the transport
  std::uint64_t requests = 0;
  double seconds = 0;  ///< from the first slot to the last completion
};

/// Runs a proxy in this process for about `duration` with `writer_threads` threads that write one ring as
/// fast as they can, each on a channel of its own. The transport verifies every put (order, source, offsets,
/// length) and completes it at once. Errors: kInvalidArgument for no or too many writers, kDataLoss naming
/// the first put that was wrong, missing or out of order.
Result<RingRate> measure_ring_null(std::chrono::seconds duration, int writer_threads);

}  // namespace mkernel::bench
