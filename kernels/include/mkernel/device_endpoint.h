// What a kernel is given to communicate with: plain structs, passed by value. The client library makes them
// (Group::device_endpoint()); mkernel/device.cuh says what a kernel does with them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/endpoint/host_watch.h"
#include "kernels/cuda/endpoint/node_barrier.h"
#include "kernels/cuda/endpoint/ring.h"
#include "kernels/cuda/sync/trace.h"
#include "proto/abi/ring_share.h"

namespace mkernel::kernels {
struct LaunchControl;
struct LentControl;
}  // namespace mkernel::kernels

namespace mkernel::device {

/// Of the structs below and of all that they point to, LaunchControl among them. Another layout or another
/// meaning of a field is another version; Group::device_endpoint() compares that of the program with the
/// library's.
inline constexpr std::uint32_t kVersion = 1;

/// A place in a registered region of a rank.
struct Place {
  std::uint32_t region;  ///< SymmetricBuffer::region()
  std::uint64_t offset;  ///< bytes
};

/// A symmetric buffer of GPU memory as mapped on this GPU, by local rank. Valid while the SymmetricBuffer and
/// the DeviceEndpoint that made it live.
struct Peers {
  std::byte* const* of_local_rank = nullptr;
};

/// One rank's end of its channels, for kernels of its GPU. Valid while the DeviceEndpoint it comes from
/// lives.
struct Endpoint {
  std::uint32_t rank = 0;
  std::uint32_t world_size = 0;
  std::uint32_t lanes = 0;  ///< of this endpoint, from 0
  /// Of every single wait; a kernel's copy may be changed. More than half an hour counts as about that
  /// (kernels::kLongestWaitNs).
  std::uint64_t deadline_ns = 0;

  // Read by mkernel/device.cuh.
  std::uint32_t first_channel = 0;  ///< of the group's channel (me -> rank 0, lane 0)
  std::uint32_t first_lane = 0;     ///< of the group's
  kernels::DeviceRings rings;
  abi::RingShare ring_share;  ///< which of them a lane uses
  kernels::HostWatch host;
  kernels::PolledCounts counts;
  std::uint64_t* issued = nullptr;              ///< GPU memory, [target][lane]
  const std::int32_t* local_of_rank = nullptr;  ///< GPU memory, -1 on other nodes
  kernels::NodeBarrier node;
  kernels::LaunchControl* control = nullptr;  ///< GPU memory
  // Of the library's own kernels.
  kernels::LentControl* lent = nullptr;  ///< GPU memory: of those that take turns with a workspace
  kernels::DeviceTrace trace;
};

}  // namespace mkernel::device
