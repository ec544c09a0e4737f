// The secret that the transports of two nodes agree on over the peer link, which TLS protects, and prove to
// know on every connection that they make themselves. Each side gives 32 random bytes: a new secret for every
// life of a peer and every rail, known to nobody who was not vouched for by the peer link.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string_view>

#include "daemon/transport/transport.h"
#include "proto/abi/status.h"

namespace mkernel::transport {

inline constexpr std::size_t kSecretBytes = 32;
/// A half of a secret, a nonce, or a proof (HMAC-SHA256).
using SecretBytes = std::array<std::uint8_t, kSecretBytes>;

/// Fills with bytes that nobody can foretell. kInternal when the system has none.
Status draw_random(SecretBytes& bytes);

/// What a transport calls the connections that the secret is for. Goes into the secret, so that a proof for
/// one protocol or version is worth nothing in another.
struct Protocol {
  std::string_view name;  ///< "TCP": for texts, too
  std::uint32_t version = 0;
};

/// How one half travels (TransportSink::send_to_peer).
struct SecretMessage {
  std::uint32_t magic;
  std::uint32_t version;  ///< of the protocol
  SecretBytes half;
};
static_assert(sizeof(SecretMessage) == 40);

enum class Prover : std::uint8_t { kDialler = 1, kListener = 2 };

/// Of one peer in one of its lives. One thread. Forgets its bytes when it goes.
///
/// The end that dials says its half first, and the other end answers with its own: whoever dials then knows
/// that the listener has the secret already.
class PeerSecret {
 public:
  /// `dials`: this end dials the peer.
  PeerSecret(const Protocol& protocol, const Identity& self, const Identity& peer, bool dials);
  PeerSecret(const PeerSecret&) = delete;
  PeerSecret& operator=(const PeerSecret&) = delete;
  ~PeerSecret();

  /// Draws this end's half; once, before anything else. Errors: those of draw_random().
  Status draw() { return draw_random(own_half_); }
  SecretMessage message() const;
  /// The peer's half, untrusted. kFailedPrecondition for another version of the protocol, by node and number;
  /// kInvalidArgument for bytes that are no such message, or a second one.
  Status receive(std::span<const std::byte> bytes);
  /// Both halves are here.
  bool complete() const { return complete_; }

  /// What proves to the other end that this one knows the secret, for connections with this transcript. The
  /// transcript has to hold a nonce of either end, and begins with fields of fixed size. Only when
  /// complete().
  SecretBytes prove(Prover who, std::initializer_list<std::span<const std::byte>> transcript) const;
  /// Whether `proof` is that of `who`; takes as long for a wrong one as for the right one. False while not
  /// complete().
  bool proven(Prover who, std::initializer_list<std::span<const std::byte>> transcript,
              const SecretBytes& proof) const;

 private:
  void join(const SecretBytes& peer_half);

  const Protocol protocol_;
  const Identity self_;
  const Identity peer_;
  const bool dials_;
  bool complete_ = false;
  SecretBytes own_half_{};
  SecretBytes key_{};
};

/// The bytes of a message of fixed layout.
template <typename T>
std::span<const std::byte> bytes_of_layout(const T& message) {
  return std::as_bytes(std::span(&message, 1));
}

}  // namespace mkernel::transport
