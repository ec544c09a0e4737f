// The timeline of a launch on the GPU, as its warps write it down in device memory. cuda/sync/trace.cuh
// writes, cuda/sync/device_timeline.h reads.
#pragma once

#include <cstdint>

namespace mkernel::kernels {

/// What a warp is at. Indices: of load, product and store the tile's number among those of the CTA (narrow
/// tiles at the end begin again at 0), of push and signal the chunk, where there is one.
enum class DeviceWork : std::uint32_t {
  kNone = 0,
  kLoad = 1,     ///< operands of a tile, from the first box asked for to the last: not their arrival
  kProduct = 2,  ///< of a tile, by one warpgroup: from its first operands to its last sum
  kStore = 3,    ///< of a tile, by one of the store threads: from the first sums to the last byte in memory
  kSum = 4,      ///< of all units that the warp claims in a row, and its waits for them
  kCopy = 5,     ///< likewise
  kPush = 6,     ///< from the push before it to the chunk's last byte at every target; of MoE as kSum
  kSignal = 7,   ///< to all targets
  // Of the mixture of experts, by the warps of a dispatching CTA:
  kRoute = 8,    ///< of a chunk of tokens: it is counted and placed, with the waits for the other chunks
  kTable = 9,    ///< of blocks, with the wait for the counts of all ranks
  kStage = 10,   ///< as kSum: tokens that cross to other nodes
  kForward = 11  ///< as kSum: tokens that have crossed, into the pools of this node
};

constexpr const char* name_of(DeviceWork work) {
  switch (work) {
    case DeviceWork::kLoad: return "load";
    case DeviceWork::kProduct: return "product";
    case DeviceWork::kStore: return "store";
    case DeviceWork::kSum: return "sum";
    case DeviceWork::kCopy: return "copy";
    case DeviceWork::kPush: return "push";
    case DeviceWork::kSignal: return "signal";
    case DeviceWork::kRoute: return "route";
    case DeviceWork::kTable: return "table";
    case DeviceWork::kStage: return "stage";
    case DeviceWork::kForward: return "forward";
    case DeviceWork::kNone: break;
  }
  return "nothing";
}

inline constexpr std::uint32_t kNoIndex = ~0U;

/// The kinds of TraceEvent, with its numbers: mkernel/trace.h is for hosts only.
enum class DeviceEventKind : std::uint32_t { kRole = 0, kWait = 1, kWork = 2 };

/// Times: of the GPU's global timer.
struct alignas(16) DeviceTraceEvent {
  std::uint64_t begin_ns;
  std::uint64_t end_ns;
  DeviceEventKind kind;
  std::uint32_t what;   ///< by kind: DeviceRole, DeviceTag or DeviceWork
  std::int32_t peer;    ///< rank that has to act, -1 when it is none
  std::uint32_t index;  ///< of a wait: its site's; kNoIndex when there is none
};
static_assert(sizeof(DeviceTraceEvent) == 32);

struct DeviceTrack {
  std::uint64_t begin_ns;  ///< of what is under way
  std::uint32_t events;    ///< that there were; those beyond DeviceTrace::capacity are lost
  std::uint32_t unused;
};

/// A CTA has one track as a whole and one for each warp that it can have.
inline constexpr std::uint32_t kTracksPerCta = 1 + 32;

/// By value among a kernel's parameters; without capacity the launch is not traced, and each hook costs a
/// comparison with a constant.
struct DeviceTrace {
  DeviceTrack* tracks = nullptr;       ///< [CTA][kTracksPerCta], zeroed before the launch
  DeviceTraceEvent* events = nullptr;  ///< [CTA][kTracksPerCta][capacity]
  std::uint32_t capacity = 0;          ///< events of a track
};

}  // namespace mkernel::kernels
