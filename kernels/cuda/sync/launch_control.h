// What a launch of the cuda executor leaves in device memory: its epoch, its end, and the first wait that
// failed.
#pragma once

#include <cstdint>

#include "kernels/base/deadline.h"
#include "proto/abi/host_device.h"

namespace mkernel::kernels {

enum class DeviceRole : std::uint32_t {
  kNone = 0,
  kCompute = 1,
  kIntraComm = 2,
  kInterSend = 3,
  kInterRecv = 4,
  kUser = 5,  ///< any thread of a user's own kernel
  kInterReduce = 6,
  kPoller = 7
};
enum class DeviceTag : std::uint32_t {
  kNone = 0,
  kChunkReady = 1,
  kTileReady = 2,
  kArrivals = 3,
  kCompleted = 4,
  kRingRoom = 5,
  kGridBarrier = 6,
  kNodeBarrier = 7,
  kRingClosed = 8,
  kLaunchEnd = 9,
  kTurn = 10,
  kEpoch = 11
};

/// No wait of a kernel takes longer: that deadline at the last of the stages (at_stage() in
/// cuda/sync/wait.cuh).
inline constexpr std::uint64_t kLongestWaitNs = kLongestDeadlineNs / 4 * 7;

/// How long a wait takes that was given `deadline_ns`.
MK_HOST_DEVICE constexpr std::uint64_t bounded_wait_ns(std::uint64_t deadline_ns) {
  return deadline_ns < kLongestWaitNs ? deadline_ns : kLongestWaitNs;
}

constexpr const char* name_of(DeviceRole role) {
  switch (role) {
    case DeviceRole::kCompute: return "compute";
    case DeviceRole::kIntraComm: return "intra_comm";
    case DeviceRole::kInterSend: return "inter_send";
    case DeviceRole::kInterRecv: return "inter_recv";
    case DeviceRole::kInterReduce: return "inter_reduce";
    case DeviceRole::kUser: return "kernel";
    case DeviceRole::kPoller: return "poller";
    case DeviceRole::kNone: break;
  }
  return "no role";
}

constexpr const char* name_of(DeviceTag tag) {
  switch (tag) {
    case DeviceTag::kChunkReady: return "a chunk";
    case DeviceTag::kTileReady: return "a tile";
    case DeviceTag::kArrivals: return "arrivals";
    case DeviceTag::kCompleted: return "completed puts";
    case DeviceTag::kRingRoom: return "room in the work ring";
    case DeviceTag::kGridBarrier: return "barrier of the grid";
    case DeviceTag::kNodeBarrier: return "barrier of the node";
    case DeviceTag::kRingClosed: return "a work ring that is closed, because a put gave up behind it,";
    case DeviceTag::kLaunchEnd: return "thread blocks that end";
    case DeviceTag::kTurn: return "the shared workspace for itself";
    case DeviceTag::kEpoch: return "the operation for itself";
    case DeviceTag::kNone: break;
  }
  return "nothing";
}

/// Whether the index of a site with this tag is a lane.
constexpr bool counts_lane(DeviceTag tag) {
  return tag == DeviceTag::kArrivals || tag == DeviceTag::kCompleted || tag == DeviceTag::kRingRoom ||
         tag == DeviceTag::kRingClosed;
}

/// Who waits for what.
struct DeviceWaitSite {
  DeviceRole role;
  DeviceTag tag;
  std::int32_t peer;    ///< rank that has to act, -1 when it is none
  std::uint32_t index;  ///< of what is awaited: a chunk's number, a lane
};

/// One per operation or endpoint and rank, zeroed once. The host reads it after the stream is done with the
/// launch.
struct LaunchControl {
  std::uint64_t
      epoch;  ///< launches that have ended; advanced by the last CTA of each, from what it began with
  /// Nonzero: a launch before this one failed, and this one only counts itself out. Written with the epoch by
  /// the last CTA of a launch, so all CTAs of the next one read the same, whatever becomes of `abort`
  /// meanwhile.
  std::uint32_t stopped;
  std::uint64_t exited;         ///< CTAs that have ended, over all launches
  std::uint64_t exited_before;  ///< CTAs that ended before this launch
  std::uint64_t met;            ///< arrivals at the grid's barrier, over all launches (cuda/comm/barrier.cuh)
  std::uint64_t met_before;     ///< arrivals before this launch
  std::uint64_t node_phase;     ///< barriers of the node that are over
  std::uint32_t abort;          ///< nonzero: every wait gives up; stays set

  // The first failed wait, written by whoever set `failed`.
  std::uint32_t failed;
  DeviceWaitSite site;
  std::uint64_t expected;
  std::uint64_t seen;
  std::uint64_t waited_ns;

  /// Pinned host memory, or null: set by every launch that failed or was stopped, so that the host hears of
  /// it without waiting for a stream.
  std::uint32_t* host_failed;
};

}  // namespace mkernel::kernels
