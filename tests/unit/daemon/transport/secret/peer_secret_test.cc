// What two ends make of their halves, and what proves nothing.
#include "daemon/transport/secret/peer_secret.h"

#include <doctest/doctest.h>

#include <set>

namespace mkernel::transport {
namespace {

constexpr Protocol kProtocol{"test", 3};
const Identity kDialler{"node-a", 1};
const Identity kListener{"node-b", 2};

/// Both ends of a peer link, with what each believes.
struct Pair {
  explicit Pair(const Protocol& listeners = kProtocol, const Identity& dialler_seen = kDialler,
                const Identity& listener_seen = kListener)
      : dialler(kProtocol, kDialler, listener_seen, true),
        listener(listeners, kListener, dialler_seen, false) {
    REQUIRE(dialler.draw().ok());
    REQUIRE(listener.draw().ok());
  }

  Status exchange() {
    const SecretMessage first = dialler.message(), second = listener.message();
    const Status heard = listener.receive(bytes_of_layout(first));
    return heard.ok() ? dialler.receive(bytes_of_layout(second)) : heard;
  }

  /// Whether the listener takes what the dialler proves, and the other way round.
  bool agree() const {
    const std::uint64_t nonces[2] = {17, 4};
    const auto text = bytes_of_layout(nonces);
    return listener.proven(Prover::kDialler, {text}, dialler.prove(Prover::kDialler, {text})) &&
           dialler.proven(Prover::kListener, {text}, listener.prove(Prover::kListener, {text}));
  }

  PeerSecret dialler, listener;
};

TEST_CASE("two halves make one secret, and each end proves it to the other") {
  Pair pair;
  CHECK_FALSE(pair.agree());
  REQUIRE(pair.exchange().ok());
  CHECK(pair.dialler.complete());
  CHECK(pair.listener.complete());
  CHECK(pair.agree());
}

TEST_CASE("a proof is for one direction, one transcript and one secret") {
  Pair pair, other;
  REQUIRE(pair.exchange().ok());
  REQUIRE(other.exchange().ok());
  std::uint64_t nonce = 1;
  const auto text = bytes_of_layout(nonce);
  SecretBytes proof = pair.dialler.prove(Prover::kDialler, {text});
  CHECK(pair.listener.proven(Prover::kDialler, {text}, proof));
  CHECK_FALSE(pair.listener.proven(Prover::kListener, {text}, proof));
  CHECK_FALSE(other.listener.proven(Prover::kDialler, {text}, proof));
  CHECK_FALSE(pair.listener.proven(Prover::kDialler, {text, text}, proof));
  CHECK_FALSE(pair.listener.proven(Prover::kDialler, {text}, {}));
  for (std::uint8_t& byte : proof) {
    byte ^= 1;
    CHECK_FALSE(pair.listener.proven(Prover::kDialler, {text}, proof));
    byte ^= 1;
  }
  nonce = 2;
  CHECK_FALSE(pair.listener.proven(Prover::kDialler, {text}, proof));
}

TEST_CASE("ends that do not mean each other share no secret") {
  const std::pair<Identity, Identity> beliefs[] = {{{"node-a", 7}, kListener},
                                                   {{"node-A", 1}, kListener},
                                                   {kDialler, {"node-b", 9}},
                                                   {kDialler, {"node-bb", 2}}};
  for (const auto& [dialler, listener] : beliefs) {
    Pair pair(kProtocol, dialler, listener);
    REQUIRE(pair.exchange().ok());
    CHECK_FALSE(pair.agree());
  }
  Pair other_name({"another", 3});
  REQUIRE(other_name.exchange().ok());
  CHECK_FALSE(other_name.agree());
}

TEST_CASE("no two draws are alike") {
  std::set<SecretBytes> seen;
  for (int i = 0; i < 100; ++i) {
    SecretBytes bytes{};
    REQUIRE(draw_random(bytes).ok());
    CHECK(seen.insert(bytes).second);
  }
}

TEST_CASE("a half of another version, another length, or a second one is refused and changes nothing") {
  Pair pair({"test", 4});
  const Status other = pair.exchange();
  CHECK(other.code() == StatusCode::kFailedPrecondition);
  CHECK(other.text() ==
        "node node-a (boot 0000000000000001) speaks test wire version 3, this node version 4");
  CHECK_FALSE(pair.listener.complete());

  Pair good;
  REQUIRE(good.exchange().ok());
  SecretMessage again = good.dialler.message();
  CHECK(good.listener.receive(bytes_of_layout(again)).code() == StatusCode::kInvalidArgument);
  CHECK(good.listener.receive(bytes_of_layout(again).first(8)).code() == StatusCode::kInvalidArgument);
  again.magic ^= 1;
  CHECK(good.listener.receive(bytes_of_layout(again)).code() == StatusCode::kInvalidArgument);
  CHECK(good.agree());
}

}  // namespace
}  // namespace mkernel::transport
