// Whoever reaches the data port and is not the peer that the peer link leads to. Each of these could write
// into a rank's memory and drop the real peer's connection before data connections proved a secret.
#include <cstring>

#include "tests/unit/daemon/transport/tcp/harness.h"

namespace mkernel::transport::tcp {
namespace {

constexpr std::uint64_t kImpostorKey = 11;
constexpr std::uint64_t kRawBoot = 4;

/// End b (boot id 9), and its peer "raw" connected to it, with a channel each way.
struct Connected {
  End b{9};
  PeerSecret secret = raw_secret(b, kRawBoot);
  std::unique_ptr<RawPeer> real;
  Hello hello{};          ///< of the real connection
  Challenge challenge{};  ///< and what b answered
  Proof proof{};          ///< and what proved it

  Connected() {
    REQUIRE(b.transport().connect(kPeer, {{"raw", kRawBoot}, "127.0.0.1:9"}).ok());
    agree(b, secret);
    REQUIRE(b.transport().open_inbound(1, kPeer, kImpostorKey).ok());
    REQUIRE(b.transport().open_outbound(2, kPeer, kImpostorKey + 1).ok());
    real = std::make_unique<RawPeer>(b);
    hello = real->hello(kRawBoot);
    const auto prove = [&](const Hello& said, const Challenge& got) {
      challenge = got;
      proof.mac = secret.prove(Prover::kDialler, {bytes_of_layout(said), bytes_of_layout(got)});
      return proof.mac;
    };
    REQUIRE(real->greet(hello, prove).code == 0);
    expect_open();
    REQUIRE(run({&b}, [&] { return b.connected == 1; }));
  }

  void expect_open() {
    OpenFrame open{};
    REQUIRE(real->receive(&open, sizeof(open)));
    CHECK(open.key == kImpostorKey + 1);
  }

  /// Dials as an impostor: refused without a reason, the connection closed, and nothing has changed for the
  /// real peer.
  void refused(const Hello& said, const std::function<SecretBytes(const Hello&, const Challenge&)>& prove) {
    const auto before = b.tcp().statistics();
    RawPeer impostor(b);
    const Welcome welcome = impostor.greet(said, prove);
    CHECK(welcome.code == static_cast<std::uint32_t>(StatusCode::kUnavailable));
    CHECK(welcome.mac == SecretBytes{});
    CHECK(impostor.closed());
    CHECK(b.tcp().statistics().handshakes_refused == before.handshakes_refused + 1);
    unchanged();
  }

  void unchanged() {
    CHECK(b.tcp().statistics().connections_lost == 0);
    CHECK(b.peer_failure.ok());
    CHECK(b.channel_failures.empty());
    const std::uint64_t number = b.arrivals[1] + 1;
    real->say(PutFrame{FrameType::kPut, 0, to_wire(number), 8, kImpostorKey, 0, 0, {}});
    const std::uint64_t payload = number * 77;
    real->say(payload);
    CHECK(run({&b}, [&] { return b.arrivals[1] == number; }));
    CHECK(std::memcmp(b.region().host(0), &payload, sizeof(payload)) == 0);
    HeldFrame held{};
    REQUIRE(real->receive(&held, sizeof(held)));  // on the connection that was there before
    CHECK(held.count == number);
  }
};

SecretBytes no_proof(const Hello&, const Challenge&) {
  return {};
}

TEST_CASE("an impostor without the secret is refused, whatever it says it is, and always in the same words") {
  Connected rig;
  Hello hello = rig.real->hello(kRawBoot);
  SUBCASE("with both boot ids right") {}
  SUBCASE("with a stale boot id of the peer") {
    hello.boot_id = kRawBoot - 1;
  }
  SUBCASE("with a stale boot id of this node") {
    hello.expected_boot_id = 8;
  }
  SUBCASE("with another name") {
    hello.node[0] = 'R';
  }
  SUBCASE("with a name without an end") {
    std::memset(hello.node, 'x', sizeof(hello.node));
  }
  SUBCASE("with a number of connections that would replace the peer's") {
    hello.connections = 7;
  }
  SUBCASE("with a connection beyond its number") {
    hello.connection = 1;
  }
  SUBCASE("with more connections than are possible") {
    hello.connections = hello.connection = 0xffffffffU;
  }
  SUBCASE("with no connections") {
    hello.connections = 0;
  }
  rig.refused(hello, no_proof);
}

TEST_CASE("who knows the secret but asks for what no peer asks for is refused in the same words") {
  Connected rig;
  Hello hello = rig.real->hello(kRawBoot);
  SUBCASE("a connection beyond its number") {
    hello.connection = 1;
  }
  SUBCASE("more connections than are possible") {
    hello.connections = kMaxConnections + 1;
  }
  rig.refused(hello, [&](const Hello& said, const Challenge& challenge) {
    return rig.secret.prove(Prover::kDialler, {bytes_of_layout(said), bytes_of_layout(challenge)});
  });
}

TEST_CASE("a handshake that was overheard cannot be said again") {
  Connected rig;
  rig.refused(rig.hello, [&](const Hello&, const Challenge& challenge) {
    CHECK(challenge.nonce != rig.challenge.nonce);
    return rig.proof.mac;
  });
}

TEST_CASE("a proof is good for the Hello it was made for: another connection number needs another") {
  Connected rig;
  Hello hello = rig.hello;
  hello.connections = 2;
  hello.connection = 1;
  rig.refused(hello, [&](const Hello&, const Challenge& challenge) {
    return rig.secret.prove(Prover::kDialler, {bytes_of_layout(rig.hello), bytes_of_layout(challenge)});
  });
}

TEST_CASE("what the listener proves is no proof of a dialler") {
  Connected rig;
  rig.refused(rig.real->hello(kRawBoot), [&](const Hello& said, const Challenge& challenge) {
    return rig.secret.prove(Prover::kListener, {bytes_of_layout(said), bytes_of_layout(challenge)});
  });
}

TEST_CASE("the right key from an earlier life of the same two daemons is worth nothing") {
  End b(9);
  const auto life = [&](PeerSecret& secret) {
    REQUIRE(b.transport().connect(kPeer, {{"raw", kRawBoot}, "127.0.0.1:9"}).ok());
    agree(b, secret);
  };
  PeerSecret earlier = raw_secret(b, kRawBoot), present = raw_secret(b, kRawBoot);
  life(earlier);
  RawPeer first(b);
  REQUIRE(first.greet(first.hello(kRawBoot), earlier).code == 0);
  b.transport().disconnect(kPeer);
  life(present);
  RawPeer stale(b), fresh(b);
  CHECK(stale.greet(stale.hello(kRawBoot), earlier).code != 0);
  CHECK(b.connected <= 1);
  CHECK(fresh.greet(fresh.hello(kRawBoot), present).code == 0);
}

TEST_CASE("before the secret is agreed nobody gets in, and the empty key opens nothing") {
  End b(9);
  REQUIRE(b.transport().connect(kPeer, {{"raw", kRawBoot}, "127.0.0.1:9"}).ok());
  const PeerSecret empty = raw_secret(b, kRawBoot);
  RawPeer raw(b);
  CHECK(raw.greet(raw.hello(kRawBoot), empty).code != 0);
  CHECK(b.connected == 0);
}

/// End a (boot id 1) dials whoever listens in the place of node "raw" (boot id 4).
struct Dialling {
  RawListener listener;
  End a{1, one_connection()};
  PeerSecret secret = raw_secret(a, kRawBoot, false);

  static TcpOptions one_connection() {
    TcpOptions options;
    options.connections_per_peer = 1;
    return options;
  }

  Dialling() {
    REQUIRE(a.transport().connect(kPeer, {{"raw", kRawBoot}, listener.endpoint()}).ok());
    REQUIRE(a.transport().open_outbound(1, kPeer, kImpostorKey).ok());
    agree(a, secret);
  }

  /// Answers one handshake of the end that dials. The connection, and whether it was good.
  std::pair<RawPeer, bool> answer(
      const std::function<Challenge(const Hello&)>& challenge_for,
      const std::function<SecretBytes(const Hello&, const Challenge&, const Proof&)>& prove) {
    RawPeer raw = listener.accept(a);
    Hello hello{};
    Proof proof{};
    REQUIRE(raw.receive(&hello, sizeof(hello)));
    const Challenge challenge = challenge_for(hello);
    raw.say(challenge);
    REQUIRE(raw.receive(&proof, sizeof(proof)));
    CHECK(secret.proven(Prover::kDialler, {bytes_of_layout(hello), bytes_of_layout(challenge)}, proof.mac));
    raw.say(Welcome{kWelcomeMagic, 0, prove(hello, challenge, proof)});
    OpenFrame open{};
    const bool up = raw.receive(&open, sizeof(open));  // the keys of its channels: only to who is the peer
    if (up) CHECK(open.key == kImpostorKey);
    return {std::move(raw), up};
  }
};

Challenge any_challenge(const Hello&) {
  Challenge challenge{kChallengeMagic, kWireVersion, 0, 0, {}};
  REQUIRE(draw_random(challenge.nonce).ok());
  return challenge;
}

TEST_CASE("who listens in a peer's place hears no channel, and the peer is found when it comes back") {
  Dialling rig;
  const auto refused = [&](auto challenge_for, auto prove) {
    CHECK_FALSE(rig.answer(challenge_for, prove).second);
    CHECK(rig.a.connected == 0);
  };
  refused(any_challenge, [](auto&, auto&, auto&) { return SecretBytes{}; });
  // Reflected: what the dialler proves is no proof of a listener, also where both nonces are the same.
  const auto reflect = [](const Hello&, const Challenge&, const Proof& proof) { return proof.mac; };
  refused(any_challenge, reflect);
  refused(
      [](const Hello& hello) {
        return Challenge{kChallengeMagic, kWireVersion, 0, 0, hello.nonce};
      },
      reflect);
  CHECK(rig.a.peer_failure.ok());
  const auto [raw, up] = rig.answer(any_challenge, [&](auto& hello, auto& challenge, auto&) {
    return rig.secret.prove(Prover::kListener, {bytes_of_layout(hello), bytes_of_layout(challenge)});
  });
  CHECK(up);
  CHECK(run({&rig.a}, [&] { return rig.a.connected == 1; }));
}

TEST_CASE("no answer of a listener that proved nothing ends a peer, not even one that says for ever") {
  Dialling rig;
  for (const std::uint32_t code : {9U, 0xffffffffU}) {
    RawPeer raw = rig.listener.accept(rig.a);
    raw.say(Challenge{kChallengeMagic, 77, code, 0, {}});
    CHECK(raw.closed());
  }
  RawPeer nonsense = rig.listener.accept(rig.a);
  nonsense.send("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n....", 50);
  CHECK(nonsense.closed());
  CHECK(rig.a.peer_failure.text() == "");
}

}  // namespace
}  // namespace mkernel::transport::tcp
