// What a kernel is given to communicate with: plain structs, passed by value. The client library makes them
// (Group::device_endpoint()); mkernel/device.cuh says what a kernel does with them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/sync/trace.h"
#include "proto/abi/host_device.h"
#include "proto/abi/ring_share.h"

namespace mkernel::abi {
struct WorkSlot;
struct RingHead;
}  // namespace mkernel::abi

// The parts of device::Endpoint.
namespace mkernel::kernels {

struct LaunchControl;
struct LentControl;

/// What the writers of one work ring share, in GPU memory. Each word alone: those who look at the tail do not
/// hold up those who claim.
struct RingClaims {
  alignas(128) std::uint64_t head;        ///< first position that nobody has claimed
  alignas(128) std::uint64_t tail;        ///< cached: at most what the proxy has consumed
  alignas(128) std::uint32_t refreshing;  ///< 1 while a thread reads the proxy's own tail

  /// Heads from here on say that the ring takes no more requests: a position was claimed that could neither
  /// be written nor given back, and a reader cannot get past it.
  static constexpr std::uint64_t kClosed = std::uint64_t{1} << 63;
  MK_HOST_DEVICE constexpr bool closed() const { return head >= kClosed; }
};

/// The rings of a session that its GPU writes: ring r begins at slots + (r << log2_slots).
struct DeviceRings {
  abi::WorkSlot* slots = nullptr;        ///< host memory registered with CUDA
  const abi::RingHead* heads = nullptr;  ///< host memory, likewise: the proxies' tails, by ring
  RingClaims* claims = nullptr;          ///< GPU memory, by ring
  std::uint32_t count = 0;
  std::uint32_t log2_slots = 0;
};

/// Abort words of the session and the group, in host memory registered with CUDA; null when not watched. One
/// warp of a grid polls them and the counts below, and copies what it sees into GPU memory: more readers
/// would slow the copies of everybody else on the bus.
struct HostWatch {
  const std::uint32_t* session_abort = nullptr;
  const std::uint32_t* group_abort = nullptr;
};

/// Counts that the poller copies into GPU memory: arrivals and completions of `lanes` lanes with `peers`
/// ranks. Word i of `base` and `seen` is arrivals [peer][lane] for i < peers * lanes, then completions
/// [peer][lane].
struct PolledCounts {
  const std::uint64_t* arrivals = nullptr;   ///< host memory: of the first lane with rank 0
  const std::uint64_t* completed = nullptr;  ///< host memory, likewise
  const std::uint64_t* base = nullptr;       ///< GPU memory: where the counts stood at the start
  std::uint64_t* seen = nullptr;             ///< GPU memory: counts since then; written by the poller alone
  std::uint32_t peers = 0;
  std::uint32_t lanes = 0;
  std::uint32_t stride = 0;  ///< words from one rank to the next in host memory

  MK_HOST_DEVICE constexpr std::uint32_t words() const { return 2 * peers * lanes; }
  MK_HOST_DEVICE constexpr std::uint32_t arrivals_index(std::uint32_t peer, std::uint32_t lane) const {
    return peer * lanes + lane;
  }
  MK_HOST_DEVICE constexpr std::uint32_t completed_index(std::uint32_t peer, std::uint32_t lane) const {
    return (peers + peer) * lanes + lane;
  }
  /// Where word i comes from.
  MK_HOST_DEVICE constexpr const std::uint64_t* source(std::uint32_t i) const {
    const std::uint32_t row = i / lanes, lane = i % lanes;
    return row < peers ? arrivals + row * stride + lane : completed + (row - peers) * stride + lane;
  }
};

/// The words of a node's barrier, of which each rank writes one in the memory of every other: addresses and
/// tables in GPU memory.
struct NodeBarrier {
  std::byte* const* words = nullptr;            ///< by local rank: where its words are, here or over NVLink
  const std::int32_t* rank_of_local = nullptr;  ///< rank in the group, for errors
  std::uint32_t local_rank = 0;
  std::uint32_t local_size = 0;
};

}  // namespace mkernel::kernels

namespace mkernel::device {

/// Of the structs below and of all that they point to, LaunchControl among them. Another layout or another
/// meaning of a field is another version; Group::device_endpoint() compares that of the program with the
/// library's.
inline constexpr std::uint32_t kVersion = 2;

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
