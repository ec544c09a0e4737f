// What all channels to one peer have under way together. Windows bound each channel by itself; without a
// bound of their sum, whatever is submitted queues behind each other in the transport, first come first
// served, and the data plane's shares of users and sessions decide nothing.
#pragma once

#include <cstdint>

namespace mkernel::transport {

/// One thread. Shared by the send windows of a peer's channels.
struct PeerLoad {
  /// More than any wire holds at a time: 400 Gbit/s for a millisecond.
  static constexpr std::uint64_t kMost = std::uint64_t{64} << 20;
  /// Of a put beside its bytes: a thousand small ones are a load as well.
  static constexpr std::uint64_t kPut = std::uint64_t{64} << 10;

  std::uint64_t bytes = 0;  ///< under way, and kPut for each put

  bool full() const { return bytes >= kMost; }
};

}  // namespace mkernel::transport
