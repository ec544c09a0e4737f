// What the two transports of a rail say to each other through their daemons (TransportSink::send_to_peer):
// queue pairs, keys, fences, refusals. Fixed layouts, native byte order (the GPUs' hosts are little-endian).
//
// Puts flow from a sender to a receiver over the sender's links, each one queue pair at either end, named by
// (slot, epoch): the sender counts up the epoch whenever it opens the link anew. Every message is about one
// link.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/transport/transport.h"
#include "proto/abi/messages.h"
#include "proto/abi/status.h"

namespace mkernel::transport::verbs {

enum class MessageType : std::uint16_t {
  // From the sender.
  kOpen = 1,     ///< Open: here is my queue pair; fence what the slot had, and connect yours
  kClose = 2,    ///< Message: the link is not needed any more
  kAttach = 3,   ///< ChannelMessage: this channel wants to use the link
  kDetach = 4,   ///< ChannelMessage: the channel is closed here
  kResolve = 5,  ///< RegionMessage: where does this region lie?
  kRevoked = 6,  ///< RegionMessage: no put into the region is under way any more
  kGivenUp = 7,  ///< Refusal: the peer is lost for this node
  kStopped = 8,  ///< ChannelMessage: no put of the channel is under way any more, and none begins
  // From the receiver.
  kOpened = 16,        ///< Opened: the old queue pair is gone, the new one takes writes
  kNotOpened = 17,     ///< Refusal
  kBroken = 18,        ///< Refusal: the receiver's end of the link has failed
  kAttached = 19,      ///< Attached: go on from there
  kResolved = 20,      ///< Resolved, and a RemoteChunk each
  kRevoke = 21,        ///< RegionMessage: no new puts into the region, and tell me
  kRefused = 22,       ///< Refusal: the channel cannot go on
  kStop = 23,          ///< ChannelMessage: no new puts of the channel, and tell me
  kWriteRefused = 24,  ///< Refusal: the receiver's device refused a write of the link, which is over by that
};

inline constexpr std::uint16_t kMessageVersion = 3;
inline constexpr std::size_t kDeviceNameBytes = 32;
inline constexpr std::uint32_t kMaxChunks = 3800;  ///< of a region: 3.7 TiB

/// Begins every message; all there is of some.
struct Message {
  std::uint16_t version = kMessageVersion;
  MessageType type{};
  std::uint32_t slot = 0;
  std::uint32_t epoch = 0;
  std::uint32_t count = 0;  ///< RemoteChunks behind a Resolved
};
static_assert(sizeof(Message) == 16);

/// A port as the other end must know it.
struct Port {
  std::uint8_t gid[16];
  std::uint32_t lid;
  std::uint8_t mtu;         ///< ibv_mtu
  std::uint8_t link_layer;  ///< IBV_LINK_LAYER_*
  std::uint8_t number;
  std::uint8_t reserved;
  char device[kDeviceNameBytes];  ///< for texts
};
static_assert(sizeof(Port) == 56);

struct Open {
  Message head;
  std::uint64_t from_boot_id;
  std::uint64_t to_boot_id;
  Port port;
  std::uint32_t qpn;
  std::uint32_t psn;
  std::uint32_t path;  ///< of the receiver, that the link is to end at
  std::uint32_t reserved;
};
static_assert(sizeof(Open) == 104);

struct Opened {
  Message head;
  Port port;
  std::uint32_t qpn;
  std::uint32_t psn;
};
static_assert(sizeof(Opened) == 80);

struct ChannelMessage {
  Message head;
  std::uint64_t key;
};
static_assert(sizeof(ChannelMessage) == 24);

struct Attached {
  Message head;
  std::uint64_t key;
  std::uint64_t held;  ///< puts of the channel that are in place
  std::uint64_t word;  ///< address of its arrival count
  std::uint32_t rkey;
  std::uint32_t reserved;
};
static_assert(sizeof(Attached) == 48);

struct RegionMessage {
  Message head;
  std::uint64_t key;
  std::uint32_t region;
  std::uint32_t grant;  ///< numbers the permission, 0 in kResolve
};
static_assert(sizeof(RegionMessage) == 32);

struct RemoteChunk {
  std::uint64_t address;
  std::uint32_t rkey;
  std::uint32_t reserved;
};
static_assert(sizeof(RemoteChunk) == 16);

struct Resolved {
  Message head;
  std::uint64_t key;
  std::uint32_t region;
  std::uint32_t grant;
  std::uint64_t bytes;        ///< of the region
  std::uint64_t chunk_bytes;  ///< of all its chunks but the last; a power of two
};
static_assert(sizeof(Resolved) == 48);
static_assert(sizeof(Resolved) + kMaxChunks * sizeof(RemoteChunk) <= kMaxMessageBytes);

struct Refusal {
  Message head;
  std::uint64_t key;    ///< kRefused: the channel
  std::uint32_t code;   ///< StatusCode, not kOk
  std::uint32_t final;  ///< kNotOpened: 1 = asking again is useless
  char text[abi::kTextBytes];
};

/// Any message of its own size.
template <typename T>
std::span<const std::byte> bytes_of(const T& message) {
  return std::as_bytes(std::span(&message, 1));
}

/// Checks bytes that came from a peer: version, type, exact size for the type, every field that has limits of
/// its own. kInvalidArgument names what is wrong. What only makes sense together with a link's state is left
/// to who has it.
Status check_message(std::span<const std::byte> bytes);

/// The message in checked bytes.
template <typename T>
T read_as(std::span<const std::byte> bytes) {
  T message;
  std::memcpy(&message, bytes.data(), sizeof(T));
  return message;
}

/// The chunks behind a checked Resolved.
std::vector<RemoteChunk> chunks_of(std::span<const std::byte> bytes);

Refusal refusal(const Message& head, const Status& why, std::uint64_t key = 0, bool final = false);
Status status_of(const Refusal& refusal);
/// "mlx5_0 port 1 (GID ::ffff:10.0.0.1)".
std::string text_of(const Port& port);

}  // namespace mkernel::transport::verbs
