// What a group costs the daemon, for limits: known from its shape, before anything is made.
#pragma once

#include <cstdint>

namespace mkernel::dataplane {

/// What the memory of a group depends on.
struct GroupFootprint {
  std::uint32_t world_size = 0;
  std::uint32_t lanes = 0;
  std::uint32_t region_capacity = 0;
  std::uint32_t rails = 1;         ///< proxies of this daemon
  std::uint32_t remote_ranks = 0;  ///< on other nodes: their channels go over a transport
  std::uint32_t window = 0;        ///< transport::Capabilities::max_in_flight_puts
};

/// Bytes of the daemon's memory that one local rank's group takes while it is open: the tables of every rail,
/// counters, the segment that is shared with the client, and the windows that transports keep for each
/// channel. Memory that clients register is not part of it. Pure; any thread.
std::uint64_t group_memory_bytes(const GroupFootprint& group);

}  // namespace mkernel::dataplane
