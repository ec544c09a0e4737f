// The shared memory between a client and its daemon: one session segment per session (work rings), one group
// segment per joined group (arrival and completed counts, members, region map, exchange board, abort word).
//
// Both are memfds that the daemon creates, seals against resizing and hands to the client. The client reads
// and writes them; the daemon never trusts a value it reads back from them, except as a hint about the
// client's own work. Every offset is in bytes from the begin of the segment and a multiple of 64.
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/abi/version.h"

namespace mkernel::abi {

/// Why a session or a group ended. Written by the daemon (or by the client's own watcher when the daemon is
/// gone) before the abort word beside it is set with release; read after the abort word was read with
/// acquire.
struct FailureRecord {
  std::uint32_t code;         ///< StatusCode
  std::int32_t culprit;       ///< rank that caused it, -1 when no single rank did
  char node[kNameBytes];      ///< node where it happened
  char text[kTextBytes - 8];  ///< who, what, which peer, likely cause
};
static_assert(sizeof(FailureRecord) == 512 && offsetof(FailureRecord, node) == 8);

/// Head of one work ring. `tail` is the first position that the proxy has not yet consumed: writers may claim
/// positions below tail + slots. Alone on its cache line.
struct alignas(64) RingHead {
  std::uint64_t tail;  ///< written by the proxy (release), read by the client
  std::uint8_t reserved[56];
};
static_assert(sizeof(RingHead) == 64);

/// Who writes a work ring. Threads and a GPU have no atomic operation in common with which both could claim
/// positions of one ring, so every rail has a ring for each. They have no order with each other.
enum class RingWriter : std::uint32_t {
  kThreads = 0,  ///< threads of the client's process
  kGpu = 1,      ///< kernels of the session's GPU
};
inline constexpr std::uint32_t kRingWriters = 2;

/// First bytes of the session segment.
struct alignas(64) SessionSegment {
  std::uint32_t magic;
  std::uint32_t version;
  std::uint32_t ring_count;    ///< of each writer, 1..kMaxRings; RingShare says which lane uses which
  std::uint32_t log2_slots;    ///< slots of each ring
  std::uint64_t slots_offset;  ///< the rings one behind the other, all of kThreads first; ring_offset()
  std::uint64_t bytes;         ///< whole segment
  std::uint32_t active;    ///< client: operations in flight (proxies poll while it is not 0, else they sleep)
  std::uint32_t abort;     ///< 0, or the StatusCode with which the session ended
  std::uint64_t launches;  ///< client: launches so far; with `fallbacks` only to be shown, whatever they say
  std::uint64_t fallbacks;  ///< client: calls that a framework made in its own way instead
  std::uint8_t reserved[8];
  RingHead ring[kRingWriters][kMaxRings];
  FailureRecord failure;

  RingHead& head(RingWriter writer, std::uint32_t number) {
    return ring[static_cast<std::uint32_t>(writer)][number];
  }
};
static_assert(offsetof(SessionSegment, abort) == 36 && offsetof(SessionSegment, launches) == 40 &&
              offsetof(SessionSegment, fallbacks) == 48 && offsetof(SessionSegment, ring) == 64 &&
              offsetof(SessionSegment, failure) == 64 + 64 * kRingWriters * kMaxRings);

/// Where a rank of a group lives.
struct Member {
  std::uint32_t node;        ///< dense node index 0..nodes-1, in the order of the lowest rank on each node
  std::uint32_t local_rank;  ///< dense index among the ranks of that node, in rank order
  char node_name[kNameBytes - 8];
};
static_assert(sizeof(Member) == 64);

/// What a region is made of.
enum class RegionKind : std::uint32_t {
  kNone = 0,
  kHostMemory = 1,  ///< memfd, sealed against shrinking
  kIpc = 2,         ///< plain GPU memory (cudaMalloc): CUDA IPC, and a dma-buf where the driver gives one
  kVmm = 3,         ///< POSIX fd of a CUDA VMM allocation
};

/// What names plain GPU memory to the other processes of its host. Opaque bytes: only the CUDA driver of
/// whoever opens the handle can tell what it is good for.
struct IpcMemory {
  std::uint8_t handle[64];  ///< cudaIpcMemHandle_t of the allocation that the region lies in
  std::uint8_t gpu[16];     ///< UUID of the GPU it lies on: processes count GPUs differently
};
static_assert(sizeof(IpcMemory) == 80);

/// One region of one rank as its peers see it: no address, no key.
struct RegionEntry {
  std::uint64_t bytes;  ///< 0 = nothing registered at this index
  std::uint32_t kind;   ///< RegionKind
  std::uint32_t reserved;
};
static_assert(sizeof(RegionEntry) == 16);

/// Whether a rank is still part of its group.
enum class Presence : std::uint32_t {
  kHere = 0,
  kLeft = 1,  ///< in peace; nothing more comes of it
  kLost = 2,  ///< its session ended without leaving; GroupSegment::ended says why
};

/// What a rank does in its group, for the errors of the others.
enum class RankPhase : std::uint32_t {
  kUnknown = 0,
  kJoined = 1,       ///< no launch and no collective call yet
  kLaunch = 2,       ///< in a launch
  kLaunched = 3,     ///< its last launch is over
  kCollective = 4,   ///< in a collective call
  kQueued = 5,       ///< its last launch is queued on a stream
  kUnreachable = 6,  ///< nobody can say: its node is lost
  kRejected = 7,     ///< it has rejected the launch that comes next in `launches`, because of `what`
};

/// One rank as the others know it. A rank writes its own entry but for `presence`; the daemon writes those of
/// the other ranks: their presence when they go, the rest when the group has failed. `what` may be written
/// while the daemon reads it: it is only for texts.
struct RankState {
  std::uint32_t presence;  ///< Presence
  std::uint32_t phase;     ///< RankPhase, written last
  std::uint64_t launches;  ///< that it has begun in this group
  char what[112];          ///< the operation of its last launch, or what it calls collectively
};
static_assert(sizeof(RankState) == 128);

/// First bytes of the group segment. Counts are 64-bit, only grow and are never reset.
///   arrivals[source * lanes + lane]     puts of channel (source -> me, lane) whose payload is visible here
///   completed[target * lanes + lane]    puts of channel (me -> target, lane) whose source may be overwritten
///   members[world_size], regions[rank * region_capacity + index], board[rank] of kExchangeBytes each,
///   states[world_size]
struct alignas(64) GroupSegment {
  std::uint32_t magic;
  std::uint32_t version;
  std::uint32_t world_size;
  std::uint32_t rank;
  std::uint32_t lanes;  ///< channels per ordered pair of ranks
  std::uint32_t region_capacity;
  std::uint32_t node_count;
  std::uint32_t first_channel;  ///< channel (me -> target, lane) is first_channel + target * lanes + lane
  std::uint64_t arrivals_offset;
  std::uint64_t completed_offset;
  std::uint64_t members_offset;
  std::uint64_t regions_offset;
  std::uint64_t board_offset;
  std::uint64_t bytes;     ///< whole segment
  std::uint64_t instance;  ///< this incarnation of the group, the same on every rank
  std::uint32_t abort;     ///< 0, or the StatusCode with which the group failed
  std::uint32_t rails;     ///< RingShare: the rings near this rank's GPU; bit r: ring r; 0: the share by rank
  std::uint64_t states_offset;
  /// 0, or the StatusCode with which the group ended because a rank was lost. Launches under way go on: those
  /// that need nothing more of that rank finish, and `abort` is raised when another rank needs it.
  std::uint32_t ended;
  std::uint32_t rejections;  ///< launches that other ranks have rejected; raised after their RankState
  std::uint8_t reserved1[16];
  FailureRecord failure;  ///< written once, by the first of `abort` and `ended`
};
static_assert(offsetof(GroupSegment, states_offset) == 96 && offsetof(GroupSegment, ended) == 104);
static_assert(offsetof(GroupSegment, arrivals_offset) == 32 && offsetof(GroupSegment, abort) == 88 &&
              offsetof(GroupSegment, failure) == 128 && sizeof(GroupSegment) == 640);

constexpr std::uint64_t align64(std::uint64_t bytes) {
  return (bytes + 63) & ~std::uint64_t{63};
}

/// Fills the layout fields (not members, not counts) of a session segment and returns its size in bytes.
constexpr std::uint64_t layout_session(SessionSegment& segment, std::uint32_t ring_count,
                                       std::uint32_t log2_slots) {
  segment.magic = kMagic;
  segment.version = kVersion;
  segment.ring_count = ring_count;
  segment.log2_slots = log2_slots;
  segment.slots_offset = align64(sizeof(SessionSegment));
  segment.bytes = segment.slots_offset + kRingWriters * ring_count * (std::uint64_t{32} << log2_slots);
  return segment.bytes;
}

/// Where the slots of a ring begin in a session segment of this geometry, in bytes.
constexpr std::uint64_t ring_offset(std::uint32_t ring_count, std::uint32_t log2_slots, RingWriter writer,
                                    std::uint32_t ring) {
  return align64(sizeof(SessionSegment)) +
         (static_cast<std::uint32_t>(writer) * ring_count + ring) * (std::uint64_t{32} << log2_slots);
}

/// The same for a group segment; `world_size`, `lanes` and `region_capacity` within the limits of version.h.
constexpr std::uint64_t layout_group(GroupSegment& segment, std::uint32_t world_size, std::uint32_t rank,
                                     std::uint32_t lanes, std::uint32_t region_capacity) {
  segment.magic = kMagic;
  segment.version = kVersion;
  segment.world_size = world_size;
  segment.rank = rank;
  segment.lanes = lanes;
  segment.region_capacity = region_capacity;
  std::uint64_t at = sizeof(GroupSegment);
  const std::uint64_t counts = align64(std::uint64_t{8} * world_size * lanes);
  segment.arrivals_offset = at;
  segment.completed_offset = at += counts;
  segment.members_offset = at += counts;
  segment.regions_offset = at += align64(sizeof(Member) * std::uint64_t{world_size});
  segment.board_offset = at += align64(sizeof(RegionEntry) * std::uint64_t{world_size} * region_capacity);
  segment.states_offset = at += kExchangeBytes * std::uint64_t{world_size};
  segment.bytes = at + sizeof(RankState) * std::uint64_t{world_size};
  return segment.bytes;
}

}  // namespace mkernel::abi
