// What the verbs and the EFA transports of two nodes both say to each other through their daemons
// (TransportSink::send_to_peer): channels, regions, refusals. Fixed layouts, native byte order (the GPUs'
// hosts are little-endian). What only one of them says is in its own message.h, as is how connections are
// opened.
//
// A message about a connection carries its slot and epoch: whoever opens a connection in a slot anew counts
// up the epoch, so that a message about an earlier one is recognised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "daemon/transport/transport.h"
#include "proto/abi/messages.h"
#include "proto/abi/status.h"

namespace mkernel::transport::rdma {

/// Of both transports: a number means the same wherever it is used.
enum class MessageType : std::uint16_t {
  kGivenUp = 1,  ///< Refusal: the peer is lost for this node
  // Channels, from the sender.
  kAttach = 16,    ///< Attach or ChannelMessage: this channel wants to use the connection
  kDetach = 17,    ///< ChannelMessage: the channel is closed here
  kResolve = 18,   ///< RegionMessage: where does this region lie?
  kRevoked = 19,   ///< RegionMessage: no put into the region is under way any more
  kStopped = 20,   ///< verbs, ChannelMessage: no put of the channel is under way any more, and none begins
  kReleased = 21,  ///< EFA, NumberMessage: nothing that carries the number is under way any more
  // Channels, from the receiver.
  kHeld = 32,      ///< Held of either transport: so many puts are in place, go on from there
  kResolved = 33,  ///< Resolved, and a RemoteChunk each
  kRevoke = 34,    ///< RegionMessage: no new puts into the region, and tell me
  kRefused = 35,   ///< Refusal: the channel cannot go on
  kStop = 36,      ///< verbs, ChannelMessage: no new puts of the channel, and tell me
  kDetached = 37,  ///< EFA, ChannelMessage: closed here, nothing more is taken
  kTaken = 38,     ///< EFA, NumberMessage: all that came with the number has been taken here
  // Connections of verbs, from the sender.
  kOpen = 48,   ///< Open: here is my queue pair; fence what the slot had, and connect yours
  kClose = 49,  ///< Message: the connection is not needed any more
  // Connections of verbs, from the receiver.
  kOpened = 64,        ///< Opened: the old queue pair is gone, the new one takes writes
  kNotOpened = 65,     ///< Refusal
  kBroken = 66,        ///< Refusal: the receiver's end of the connection has failed
  kWriteRefused = 67,  ///< Refusal: the receiver's device refused a write of the connection, which is over
  // Connections of EFA.
  kHello = 80,    ///< Hello, from the opening end: my old queue pair is gone, here is the new one
  kWelcome = 81,  ///< Hello, the answer: mine too, and I know your address
  kReady = 82,    ///< Message: now I know yours
  kLost = 83,     ///< Refusal: this epoch is over at my end
  // Trying a better route beside the connection; `epoch` numbers the tries.
  kTry = 84,      ///< Hello, from the opening end: here is a queue pair that carries no channel
  kTried = 85,    ///< Hello, the answer: here is the other
  kTryLost = 86,  ///< Refusal, from either end: nothing came of it
  kTryOver = 87,  ///< Message, from the opening end: the queue pair is not needed any more
};

inline constexpr std::uint16_t kMessageVersion = 4;
inline constexpr std::uint32_t kMaxChunks = 3800;  ///< chunks of one region: 3.7 TiB in pieces of 1 GiB

/// Begins every message; all there is of some.
struct Message {
  std::uint16_t version = kMessageVersion;
  MessageType type{};
  std::uint32_t slot = 0;  ///< over EFA there is one
  std::uint32_t epoch = 0;
  std::uint32_t count = 0;  ///< RemoteChunks behind a Resolved
};
static_assert(sizeof(Message) == 16);

struct ChannelMessage {
  Message head;
  std::uint64_t key;
};
static_assert(sizeof(ChannelMessage) == 24);

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
  std::uint64_t bytes;        ///< length of the region
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

/// The message in checked bytes.
template <typename T>
T read_as(std::span<const std::byte> bytes) {
  T message;
  std::memcpy(&message, bytes.data(), sizeof(T));
  return message;
}

/// What one transport says beside what both say.
struct Dialect {
  std::size_t (*size_of)(MessageType type) = nullptr;  ///< 0: it has no such message
  /// The fields of a message that has the right size. Called for the messages of both as well.
  Status (*check)(MessageType type, std::span<const std::byte> bytes) = nullptr;
};

/// Checks bytes that came from a peer: version, type, exact size for the type, every field that has limits of
/// its own. kInvalidArgument names what is wrong. What only makes sense together with a connection's state is
/// left to who has it.
Status check_message(std::span<const std::byte> bytes, const Dialect& dialect);
/// How such checks say what is wrong.
Status wrong_message(const std::string& what);
/// An end of a connection as a peer names it: a queue pair's number, and a text that ends.
Status check_qpn(std::uint32_t qpn);
Status check_device_name(std::span<const char> name);

/// A Resolved with a chunk each.
std::vector<std::byte> resolved_with(Resolved resolved, std::span<const RemoteChunk> chunks);
/// The chunks behind a checked Resolved.
std::vector<RemoteChunk> chunks_of(std::span<const std::byte> bytes);

Refusal refusal(const Message& head, const Status& why, std::uint64_t key = 0, bool final = false);
Status status_of(const Refusal& refusal);

}  // namespace mkernel::transport::rdma
