#include "daemon/transport/secret/peer_secret.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <string>
#include <vector>

#include "daemon/base/hex.h"

namespace mkernel::transport {
namespace {

constexpr std::uint32_t kSecretMagic = 0x53434b4dU;  ///< "MKCS"

SecretBytes hmac_sha256(std::span<const std::uint8_t> key, std::span<const std::uint8_t> text) {
  SecretBytes out{};
  unsigned bytes = 0;
  // Fails only where memory or the algorithm is missing. All zero is then no secret: proven() refuses it.
  if (::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()), text.data(), text.size(), out.data(),
             &bytes) == nullptr ||
      bytes != out.size()) {
    out.fill(0);
  }
  return out;
}

void append(std::vector<std::uint8_t>& text, const void* bytes, std::size_t count) {
  const auto* begin = static_cast<const std::uint8_t*>(bytes);
  text.insert(text.end(), begin, begin + count);
}

/// With its length, so that no two lists of fields are the same text.
void append_field(std::vector<std::uint8_t>& text, std::string_view field) {
  const std::uint64_t bytes = field.size();
  append(text, &bytes, sizeof(bytes));
  append(text, field.data(), field.size());
}

void append_identity(std::vector<std::uint8_t>& text, const Identity& identity) {
  append(text, &identity.boot_id, sizeof(identity.boot_id));
  append_field(text, identity.node);
}

}  // namespace

Status draw_random(SecretBytes& bytes) {
  if (::RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) == 1) return {};
  return {StatusCode::kInternal, "the system has no random bytes (RAND_bytes of OpenSSL failed)"};
}

PeerSecret::PeerSecret(const Protocol& protocol, const Identity& self, const Identity& peer, bool dials)
    : protocol_(protocol), self_(self), peer_(peer), dials_(dials) {}

PeerSecret::~PeerSecret() {
  ::OPENSSL_cleanse(own_half_.data(), own_half_.size());
  ::OPENSSL_cleanse(key_.data(), key_.size());
}

SecretMessage PeerSecret::message() const {
  return {kSecretMagic, protocol_.version, own_half_};
}

Status PeerSecret::receive(std::span<const std::byte> bytes) {
  const std::string who = "node " + peer_.node + " (boot " + base::hex(peer_.boot_id) + ")";
  SecretMessage message{};
  if (bytes.size() == sizeof(message)) std::memcpy(&message, bytes.data(), sizeof(message));
  if (bytes.size() != sizeof(message) || message.magic != kSecretMagic) {
    return {StatusCode::kInvalidArgument, who + " sent a message of " + std::to_string(bytes.size()) +
                                              " bytes that is no half of a secret for " +
                                              std::string(protocol_.name) + " connections"};
  }
  if (message.version != protocol_.version) {
    return {StatusCode::kFailedPrecondition, who + " speaks " + std::string(protocol_.name) +
                                                 " wire version " + std::to_string(message.version) +
                                                 ", this node version " + std::to_string(protocol_.version)};
  }
  if (complete_) {
    return {StatusCode::kInvalidArgument, who + " sent its half of the secret for " +
                                              std::string(protocol_.name) + " connections a second time"};
  }
  join(message.half);
  return {};
}

void PeerSecret::join(const SecretBytes& peer_half) {
  const SecretBytes& first = dials_ ? own_half_ : peer_half;
  const SecretBytes& second = dials_ ? peer_half : own_half_;
  std::array<std::uint8_t, 2 * kSecretBytes> both{};
  std::memcpy(both.data(), first.data(), first.size());
  std::memcpy(both.data() + first.size(), second.data(), second.size());
  std::vector<std::uint8_t> context;
  append_field(context, "mkernel data connections");
  append_field(context, protocol_.name);
  append(context, &protocol_.version, sizeof(protocol_.version));
  append_identity(context, dials_ ? self_ : peer_);
  append_identity(context, dials_ ? peer_ : self_);
  key_ = hmac_sha256(both, context);
  ::OPENSSL_cleanse(both.data(), both.size());
  complete_ = key_ != SecretBytes{};
}

SecretBytes PeerSecret::prove(Prover who,
                              std::initializer_list<std::span<const std::byte>> transcript) const {
  std::vector<std::uint8_t> text;
  append(text, &who, sizeof(who));
  for (const auto part : transcript) append(text, part.data(), part.size());
  return hmac_sha256(key_, text);
}

bool PeerSecret::proven(Prover who, std::initializer_list<std::span<const std::byte>> transcript,
                        const SecretBytes& proof) const {
  if (!complete_) return false;
  const SecretBytes expected = prove(who, transcript);
  return expected != SecretBytes{} && ::CRYPTO_memcmp(expected.data(), proof.data(), expected.size()) == 0;
}

}  // namespace mkernel::transport
