// The packets of one emulated link. Both ends are daemons of one host: native byte order, version checked in
// the hello. Every field is untrusted when it comes in.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ratio>
#include <type_traits>

#include "daemon/base/clock.h"
#include "daemon/transport/window/receive_window.h"
#include "proto/abi/messages.h"

namespace mkernel::transport::emulated {

using Clock = base::Clock;
using Time = base::TimePoint;
static_assert(std::is_same_v<Clock::period, std::nano>, "times cross the wire in nanoseconds");

inline std::int64_t to_ticks(Time time) {
  return time.time_since_epoch().count();
}
inline Time from_ticks(std::int64_t time) {
  return Time(Clock::duration(time));
}

inline constexpr std::uint32_t kWireMagic = 0x554d454dU;  ///< "MEMU"
inline constexpr std::uint32_t kWireVersion = 5;

/// Puts of one channel in flight.
inline constexpr std::uint32_t kWindow = 1024;

enum class PacketType : std::uint16_t {
  kHello = 1,  ///< first packet of either end, + 1 fd: the sender's FencePage
  kRefuse = 2,
  kAnnounce = 3,  ///< + 1 fd: the memfd or VMM allocation of a source region; of kind kIpc none
  kWithdraw = 4,
  kPuts = 5,
  kAcks = 6,  ///< the first `count` puts of a channel are published
  kHeld = 7,  ///< the same, and puts of the channel may flow on this connection from there on
  kNack = 8,
};

/// Begins every packet.
struct Head {
  PacketType type;
  std::uint16_t count;  ///< entries in the packet, where it has any
  std::uint32_t reserved;
};

struct HelloPacket {
  Head head;
  std::uint32_t magic;
  std::uint32_t version;
  std::uint64_t from_boot_id;
  std::uint64_t to_boot_id;
  char from_node[abi::kNameBytes];
  char to_node[abi::kNameBytes];
  std::uint32_t wire;  ///< the rail whose wire the connection plays
  std::uint32_t reserved;
  std::int64_t clock;  ///< when it was sent, as PutEntry::arrives: both ends must have one clock
};

struct RefusePacket {
  Head head;
  std::uint32_t code;   ///< StatusCode
  std::uint32_t final;  ///< 1 = asking again is useless
  char text[abi::kTextBytes];
};

struct AnnouncePacket {
  Head head;
  std::uint64_t region;  ///< Region::id at the sender
  std::uint64_t offset;  ///< of the region within its fd, or within the allocation of `ipc`
  std::uint64_t bytes;
  std::uint32_t kind;  ///< abi::RegionKind
  std::uint32_t reserved;
  abi::IpcMemory ipc;  ///< of kind kIpc alone
};

struct WithdrawPacket {
  Head head;
  std::uint64_t region;
};

struct PutEntry {
  std::uint64_t channel;        ///< ChannelKey
  std::uint64_t source_region;  ///< announced before on this connection
  std::uint64_t source_offset;
  std::uint64_t target_offset;
  std::uint32_t length;
  std::uint16_t target_region;
  WireSequence sequence;  ///< of Put::sequence, narrowed
  std::int64_t arrives;   ///< not before: host's monotonic clock, ns; 0: when its bytes are in place
};

struct PutsPacket {
  static constexpr std::size_t kEntries = (abi::kMaxMessageBytes - sizeof(Head) - 8) / sizeof(PutEntry);
  Head head;
  std::uint64_t fence;  ///< FencePage::closes when the packet left
  std::array<PutEntry, kEntries> puts;
};

struct CountEntry {
  std::uint64_t channel;
  std::uint64_t count;
};

/// kAcks and kHeld.
struct CountsPacket {
  static constexpr std::size_t kEntries = (abi::kMaxMessageBytes - sizeof(Head)) / sizeof(CountEntry);
  Head head;
  std::array<CountEntry, kEntries> counts;
};

struct NackPacket {
  Head head;
  std::uint64_t channel;
  std::uint32_t code;
  std::uint32_t reserved;
  char text[abi::kTextBytes];
};

static_assert(sizeof(Head) == 8 && sizeof(PutEntry) == 48 && sizeof(CountEntry) == 16);
static_assert(sizeof(HelloPacket) <= abi::kMaxMessageBytes && sizeof(PutsPacket) <= abi::kMaxMessageBytes &&
              sizeof(CountsPacket) <= abi::kMaxMessageBytes);

/// Shared by the two ends of a connection, one per direction. Closing a channel must stop the other process
/// from publishing a put whose source may be overwritten from then on: the sender counts up before
/// close_channel() returns, the receiver compares after its copy and before it publishes, and discards a put
/// of an older count as if it had been dropped on the way. Puts of other channels are then sent again.
struct FencePage {
  std::uint64_t closes;
};
inline constexpr std::uint64_t kFencePageBytes = 4096;

}  // namespace mkernel::transport::emulated
