// Who may connect, and what is said to those who may not.
#include <cstring>

#include "proto/ipc/packet.h"
#include "tests/unit/daemon/transport/tcp/harness.h"

namespace mkernel::transport::tcp {
namespace {

TcpOptions patience(int milliseconds, std::uint32_t connections = 2) {
  TcpOptions options;
  options.base.peer_timeout = std::chrono::milliseconds(milliseconds);
  options.connections_per_peer = connections;
  return options;
}

TEST_CASE("both ends report the other once, when all connections are up") {
  End a(1, patience(30000, 3)), b(2, patience(30000, 3));
  connect(a, b);
  CHECK(run({&a, &b}, [&] { return a.connected > 0 && b.connected > 0; }));
  for (int i = 0; i < 50; ++i) run({&a, &b}, [&] { return true; });
  CHECK(a.connected == 1);
  CHECK(b.connected == 1);
}

TEST_CASE("the number of connections is the dialling end's; channels still find each other") {
  for (const auto& [dialler, listener] : {std::pair{1U, 4U}, {4U, 1U}, {3U, 2U}}) {
    End a(1, patience(30000, dialler)), b(2, patience(30000, listener));
    connect(a, b);
    fill_random(a.region(), 3);
    for (ChannelId id = 0; id < 16; ++id) {
      REQUIRE(b.transport().open_inbound(id, kPeer, 100 + id).ok());
      REQUIRE(a.transport().open_outbound(id, kPeer, 100 + id).ok());
      const Put put = a.put(id, 1, id * 4096, 4096);
      REQUIRE(a.transport().submit({&put, 1}) == 1);
    }
    CHECK(run({&a, &b}, [&] { return a.completions.size() == 16; }));
    CHECK(std::memcmp(a.region().host(0), b.region().host(0), 16 * 4096) == 0);
  }
}

TEST_CASE("a peer in another life is never connected, and given up after the time-out") {
  End a(1, patience(300)), b(2);
  PeerAddress other_life = b.address();
  other_life.identity.boot_id = 77;
  a.meet(b, other_life);
  b.meet(a);
  CHECK(run({&a, &b}, [&] { return !a.peer_failure.ok(); }));
  CHECK(a.peer_failure.code() == StatusCode::kUnavailable);
  CHECK(contains(a.peer_failure.text(), "node-2"));
  CHECK(contains(a.peer_failure.text(), "refuses the connection"));
  CHECK(b.connected == 0);
  CHECK(b.tcp().statistics().handshakes_refused > 0);
}

TEST_CASE("nobody dials before the other end knows the secret, so nothing is refused and tried again") {
  End a(1), b(2);
  a.meet(b);
  CHECK(run({&a, &b}, [&] { return a.said.size() == 1; }));
  for (int i = 0; i < 50; ++i) run({&a, &b}, [] { return true; });
  CHECK(a.said.size() == 1);  // its half, which the peer link holds back until b has connected
  b.meet(a);
  CHECK(run({&a, &b}, [&] { return a.connected > 0 && b.connected > 0; }));
  CHECK(b.tcp().statistics().handshakes_refused == 0);
}

TEST_CASE("a peer that never says its half of the secret is given up, and the text says so") {
  End a(1, patience(100)), b(2);
  a.meet(b);
  CHECK(run({&a, &b}, [&] { return !a.peer_failure.ok(); }));
  CHECK(a.peer_failure.code() == StatusCode::kUnavailable);
  CHECK(contains(a.peer_failure.text(), "has not sent its half of the secret"));
}

TEST_CASE("a peer of another wire version, or whose half of the secret makes no sense, is given up at once") {
  SecretMessage half{};
  std::string expected = "no half of a secret";
  std::size_t bytes = sizeof(half);
  End b(9);
  REQUIRE(b.transport().connect(kPeer, {{"raw", 4}, "127.0.0.1:9"}).ok());
  PeerSecret secret = raw_secret(b, 4);
  REQUIRE(secret.draw().ok());
  half = secret.message();
  SUBCASE("another version") {
    half.version = 1;
    expected = "node raw (boot 0000000000000004) speaks TCP wire version 1, this node version 2";
  }
  SUBCASE("not the message") {
    half.magic = 7;
  }
  SUBCASE("cut short") {
    bytes = sizeof(half) - 1;
  }
  SUBCASE("nothing") {
    bytes = 0;
  }
  SUBCASE("twice") {
    b.transport().receive_from_peer(kPeer, bytes_of_layout(half));
    expected = "a second time";
  }
  b.transport().receive_from_peer(kPeer, bytes_of_layout(half).first(bytes));
  b.transport().receive_from_peer(kPeer + 1, bytes_of_layout(half));  // nobody: ignored
  CHECK(run({&b}, [&] { return !b.peer_failure.ok(); }));
  CHECK(contains(b.peer_failure.text(), expected));
}

TEST_CASE("a silent listener is given up within the time-out, and the text says where and why") {
  End a(1, patience(150));
  RawListener silent;  // its kernel accepts, it says nothing
  REQUIRE(a.transport().connect(kPeer, {{"raw", 4}, silent.endpoint()}).ok());
  PeerSecret secret = raw_secret(a, 4, false);
  agree(a, secret);
  CHECK(run({&a}, [&] { return !a.peer_failure.ok(); }));
  CHECK(a.peer_failure.code() == StatusCode::kUnavailable);
  CHECK(contains(a.peer_failure.text(), silent.endpoint()));
  CHECK(contains(a.peer_failure.text(), "no answer to the handshake"));
}

TEST_CASE("a port where nobody listens is named with the system's reason") {
  End a(1, patience(100));
  const std::string gone = RawListener().endpoint();
  REQUIRE(a.transport().connect(kPeer, {{"raw", 4}, gone}).ok());
  PeerSecret secret = raw_secret(a, 4, false);
  agree(a, secret);
  CHECK(run({&a}, [&] { return !a.peer_failure.ok(); }));
  CHECK(contains(a.peer_failure.text(), "refused"));
}

TEST_CASE("connecting twice, to oneself, or to no address is refused at once") {
  End a(1), b(2);
  a.meet(b);
  CHECK(a.transport().connect(kPeer, b.address()).code() == StatusCode::kAlreadyExists);
  CHECK(a.transport().connect(6, a.address()).code() == StatusCode::kInvalidArgument);
  for (const char* endpoint : {"", "127.0.0.1", "127.0.0.1:", "127.0.0.1:99999", ":80", "host.invalid:80"}) {
    CAPTURE(endpoint);
    CHECK(a.transport().connect(7, {{"node-3", 3}, endpoint}).code() == StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace mkernel::transport::tcp
