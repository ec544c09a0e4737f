// What two TCP transports say to each other. Little endian, fixed layouts; every field that arrives is
// untrusted.
//
// A connection begins with a handshake, in which each end proves that it knows the secret that the two
// daemons agreed on over their peer link (../secret/peer_secret.h):
//
//   Hello      dialler  -> listener   who calls whom, in which of its lives; the dialler's nonce
//   Challenge  listener -> dialler    the listener's nonce, to whoever calls
//   Proof      dialler  -> listener   HMAC over both
//   Welcome    listener -> dialler    HMAC over both, from the other side; before it the old connection was
//                                     closed
//
// Until a proof was checked nothing changes at either end, and no answer tells anything: a refusal is a code,
// the same whatever the reason. After the handshake both ends send frames; the first byte of a frame is its
// type. Only a put carries bytes behind its frame.
//
//   Open      sender -> receiver   "what do you hold?" for each of its channels on a new connection
//   Held      receiver -> sender   "the first n puts are published": the answer to Open, and later the
//                                  acknowledgement. The first Held of a channel on a connection is what lets
//                                  its sender begin there, at put n + 1: the receiver had closed the old
//                                  connection, partial put and all, before this one was made.
//   Put       sender -> receiver   a put or the next part of one, `length` bytes of payload follow, `rest`
//   more in
//                                  further frames. Frames of other channels may come between them.
//   Closed    sender -> receiver   the sender has closed the channel; a put that was begun ends here
//   Refused   receiver -> sender   the channel has failed, and why
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "daemon/transport/secret/peer_secret.h"
#include "daemon/transport/window/receive_window.h"
#include "proto/abi/version.h"

namespace mkernel::transport::tcp {

static_assert(std::endian::native == std::endian::little,
              "the wire is little endian, and so is every host here");

inline constexpr std::uint32_t kWireMagic = 0x50434b4dU;       ///< "MKCP"
inline constexpr std::uint32_t kChallengeMagic = 0x43434b4dU;  ///< "MKCC"
inline constexpr std::uint32_t kWelcomeMagic = 0x57434b4dU;    ///< "MKCW"
inline constexpr std::uint32_t kWireVersion = 2;               ///< both ends must agree exactly
inline constexpr std::uint32_t kMaxConnections = 64;           ///< per peer
/// Payload of one frame. Whoever closes a channel owes the peer the rest of a frame that was begun, and no
/// more.
inline constexpr std::uint32_t kMaxFrameBytes = 1 << 20;

struct Hello {
  std::uint32_t magic;
  std::uint32_t version;
  std::uint64_t boot_id;           ///< of the end that dials
  std::uint64_t expected_boot_id;  ///< whom it means to reach: this life of that node, no other
  std::uint32_t connection;        ///< which of `connections` this one is
  std::uint32_t connections;       ///< the dialling end's choice holds for both
  char node[abi::kNameBytes];
  SecretBytes nonce;
};
static_assert(sizeof(Hello) == 128 && offsetof(Hello, connection) == 24 && offsetof(Hello, nonce) == 96);

struct Challenge {
  std::uint32_t magic;
  std::uint32_t version;  ///< of the end that listens
  std::uint32_t code;     ///< StatusCode: kOk, or kFailedPrecondition for a Hello of another version
  std::uint32_t reserved;
  SecretBytes nonce;
};
static_assert(sizeof(Challenge) == 48);

struct Proof {
  SecretBytes mac;  ///< Prover::kDialler over Hello and Challenge
};
static_assert(sizeof(Proof) == 32);

struct Welcome {
  std::uint32_t magic;
  std::uint32_t code;  ///< StatusCode: kOk, or kUnavailable: refused, try again later
  SecretBytes mac;     ///< Prover::kListener over Hello and Challenge; zero in a refusal
};
static_assert(sizeof(Welcome) == 40);

enum class FrameType : std::uint8_t { kOpen = 1, kHeld = 2, kPut = 3, kRefused = 4, kClosed = 5 };

struct OpenFrame {
  FrameType type;
  std::uint8_t reserved[7];
  std::uint64_t key;
};
static_assert(sizeof(OpenFrame) == 16);

struct ClosedFrame {
  FrameType type;
  std::uint8_t reserved[7];
  std::uint64_t key;
};
static_assert(sizeof(ClosedFrame) == 16);

struct HeldFrame {
  FrameType type;
  std::uint8_t reserved[7];
  std::uint64_t key;
  std::uint64_t count;
};
static_assert(sizeof(HeldFrame) == 24);

struct PutFrame {
  FrameType type;
  std::uint8_t continues;  ///< 1: goes on with the put that the channel's last Put left unfinished
  WireSequence sequence;   ///< of the put, the same in all its frames
  std::uint32_t length;    ///< bytes of payload behind the frame; 0 only in a put of none
  std::uint64_t key;
  std::uint64_t offset;  ///< of the put, within the receiver's region
  std::uint16_t region;
  std::uint16_t reserved;
  std::uint32_t rest;  ///< bytes of the put that come in further frames
};
static_assert(sizeof(PutFrame) == 32 && offsetof(PutFrame, key) == 8 && offsetof(PutFrame, rest) == 28);

struct RefusedFrame {
  FrameType type;
  std::uint8_t reserved[3];
  std::uint32_t code;  ///< StatusCode
  std::uint64_t key;
  char text[abi::kTextBytes];
};
static_assert(sizeof(RefusedFrame) == 464);

/// Bytes of the frame that begins with `type`; 0 for a byte that begins no frame.
constexpr std::size_t frame_bytes(FrameType type) {
  switch (type) {
    case FrameType::kOpen: return sizeof(OpenFrame);
    case FrameType::kHeld: return sizeof(HeldFrame);
    case FrameType::kPut: return sizeof(PutFrame);
    case FrameType::kRefused: return sizeof(RefusedFrame);
    case FrameType::kClosed: return sizeof(ClosedFrame);
  }
  return 0;
}

}  // namespace mkernel::transport::tcp
