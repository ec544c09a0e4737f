// What the EFA transports of two nodes say to each other through their daemons (TransportSink::send_to_peer):
// addresses, channels, keys. Fixed layouts, native byte order (the GPUs' hosts are little-endian).
//
// A connection is one queue pair at either end, for puts both ways. The end with the smaller (node, boot id)
// opens it and counts up its epoch each time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "proto/abi/messages.h"
#include "proto/abi/status.h"

namespace mkernel::transport::efa {

enum class MessageType : std::uint16_t {
  // Connections.
  kHello = 1,    ///< Hello, from the opening end: my old queue pair is gone, here is the new one
  kWelcome = 2,  ///< Hello, the answer: mine too, and I know your address
  kReady = 3,    ///< Message: now I know yours
  kLost = 4,     ///< Refusal: this epoch is over at my end
  kGivenUp = 5,  ///< Refusal: the peer is lost for this node
  // Trying a better route beside the connection; `epoch` numbers the tries.
  kTry = 8,       ///< Hello, from the opening end: here is a queue pair that carries no channel
  kTried = 9,     ///< Hello, the answer: here is the other
  kTryLost = 10,  ///< Refusal, from either end: nothing came of it
  kTryOver = 11,  ///< Message, from the opening end: the queue pair is not needed any more
  // From the sender of a channel.
  kAttach = 16,    ///< Attach: this channel wants to use the connection
  kDetach = 17,    ///< ChannelMessage: it is closed here
  kResolve = 18,   ///< RegionMessage: where does this region lie?
  kRevoked = 19,   ///< RegionMessage: no put into the region is under way any more
  kReleased = 20,  ///< NumberMessage: nothing that carries the number is under way any more
  // From its receiver.
  kAttached = 32,  ///< Attached: go on from there
  kDetached = 33,  ///< ChannelMessage: closed here, nothing more is taken
  kResolved = 34,  ///< Resolved
  kRevoke = 35,    ///< RegionMessage: no new puts into the region, and tell me
  kRefused = 36,   ///< Refusal: the channel cannot go on
  kTaken = 37,     ///< NumberMessage: all that came with the number has been taken here
};

inline constexpr std::uint16_t kMessageVersion = 3;
inline constexpr std::size_t kDeviceNameBytes = 64;

/// Begins every message; all there is of some.
struct Message {
  std::uint16_t version = kMessageVersion;
  MessageType type{};
  std::uint32_t epoch = 0;
};
static_assert(sizeof(Message) == 8);

struct Hello {
  Message head;
  std::uint64_t from_boot_id;
  std::uint64_t to_boot_id;
  std::uint8_t gid[16];
  std::uint32_t qpn;
  std::uint32_t qkey;
  std::uint32_t credit;  ///< puts that may be on their way to this end, of all channels
  std::uint32_t window;  ///< and of one channel
  std::uint32_t path;    ///< of who answers, by its own order: where the queue pairs are to end
  std::uint32_t reserved;
  char device[kDeviceNameBytes];  ///< for texts
};
static_assert(sizeof(Hello) == 128);

struct ChannelMessage {
  Message head;
  std::uint64_t key;
};
static_assert(sizeof(ChannelMessage) == 16);

struct Attach {
  Message head;
  std::uint64_t key;
  std::uint32_t serial;  ///< the sender's, another each time it attaches the channel anew
  std::uint32_t reserved;
};
static_assert(sizeof(Attach) == 24);

struct Attached {
  Message head;
  std::uint64_t key;
  std::uint64_t held;    ///< puts of the channel that are published
  std::uint32_t index;   ///< what the immediate data calls the channel
  std::uint32_t serial;  ///< of the Attach that is answered
};
static_assert(sizeof(Attached) == 32);

struct NumberMessage {
  Message head;
  std::uint32_t number;  ///< as the immediate data of the puts has it
  std::uint32_t reserved;
};
static_assert(sizeof(NumberMessage) == 16);

struct RegionMessage {
  Message head;
  std::uint64_t key;
  std::uint32_t region;
  std::uint32_t grant;  ///< numbers the permission, 0 in kResolve
};
static_assert(sizeof(RegionMessage) == 24);

struct Resolved {
  Message head;
  std::uint64_t key;
  std::uint32_t region;
  std::uint32_t grant;
  std::uint64_t address;
  std::uint64_t bytes;
  std::uint32_t rkey;
  std::uint32_t reserved;
};
static_assert(sizeof(Resolved) == 48);

struct Refusal {
  Message head;
  std::uint64_t key;   ///< kRefused: the channel
  std::uint32_t code;  ///< StatusCode, not kOk
  std::uint32_t reserved;
  char text[abi::kTextBytes];
};

/// Any message of its own size.
template <typename T>
std::span<const std::byte> bytes_of(const T& message) {
  return std::as_bytes(std::span(&message, 1));
}

/// Checks bytes that came from a peer: version, type, exact size for the type, every field that has limits of
/// its own. kInvalidArgument names what is wrong.
Status check_message(std::span<const std::byte> bytes);

/// The message in checked bytes.
template <typename T>
T read_as(std::span<const std::byte> bytes) {
  T message;
  std::memcpy(&message, bytes.data(), sizeof(T));
  return message;
}

Refusal refusal(const Message& head, const Status& why, std::uint64_t key = 0);
Status status_of(const Refusal& refusal);
/// "rdmap79s0 port 1 (GID fe80::1, QPN 17)".
std::string text_of(const Hello& end);

}  // namespace mkernel::transport::efa
