// What all channels to one peer have under way together. Windows bound each channel by itself; without a
// bound of their sum, whatever is submitted queues behind each other in the transport, first come first
// served, and the data plane's shares of users and sessions decide nothing.
#pragma once

#include <cstdint>

namespace mkernel::transport {

/// One thread. Shared by the send windows of a peer's channels.
struct PeerLoad {
  /// More than any wire holds at a time: 400 Gbit/s for half a millisecond.
  static constexpr std::uint64_t kMostBytes = std::uint64_t{32} << 20;
  static constexpr std::uint64_t kMostPuts = 1024;

  std::uint64_t bytes = 0;
  std::uint64_t puts = 0;

  bool full() const { return bytes >= kMostBytes || puts >= kMostPuts; }
};

}  // namespace mkernel::transport
