// The writing side of one work ring.
#pragma once

#include <atomic>
#include <cstdint>

#include "kernels/base/views.h"
#include "kernels/cpu/sync/wait.h"
#include "proto/abi/work_request.h"

namespace mkernel::kernels {

/// Claims positions and writes slots. Any number of threads may push; their slots are consumed in the order
/// in which they claimed. Several producers over the same RingView see each other through its head.
///
/// A position is claimed only when the ring has room for it (compare-and-swap rather than fetch-and-add): a
/// wait for room that fails leaves no hole behind on which the proxy would stall for ever.
class RingProducer {
 public:
  explicit RingProducer(const RingView& ring) : ring_(ring) {}

  /// Writes one slot. What the request refers to must have been written by this thread, or acquired by it.
  /// Blocks while the ring is full; errors as of the bounded wait.
  Status push(const abi::WorkRequest& request, const WaitSite& site, const WaitScope& scope);

 private:
  /// True with a position, false when there is no room.
  bool claim(std::uint64_t& position);

  RingView ring_;
  std::atomic<std::uint64_t> cached_tail_{0};  ///< refreshed only when the ring looks full
};

}  // namespace mkernel::kernels
