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

TEST_CASE("a peer in another life is refused, by name and boot id, and told why") {
  End a(1, patience(30000)), b(2);
  PeerAddress other_life = b.address();
  other_life.identity.boot_id = 77;
  REQUIRE(a.transport().connect(kPeer, other_life).ok());
  REQUIRE(b.transport().connect(kPeer, a.address()).ok());
  CHECK(run({&a, &b}, [&] { return !a.peer_failure.ok(); }));  // at once, not after the time-out
  CHECK(a.peer_failure.code() == StatusCode::kFailedPrecondition);
  CHECK(contains(a.peer_failure.text(), "node-2"));
  CHECK(contains(a.peer_failure.text(), "boot 000000000000004d expected, this is 0000000000000002"));
  CHECK(b.connected == 0);
  CHECK(b.tcp().statistics().handshakes_refused > 0);
}

TEST_CASE("a peer that is not known yet is tried again") {
  End a(1), b(2);
  REQUIRE(a.transport().connect(kPeer, b.address()).ok());
  CHECK(run({&a, &b}, [&] { return b.tcp().statistics().handshakes_refused > 3; }));
  REQUIRE(b.transport().connect(kPeer, a.address()).ok());
  CHECK(run({&a, &b}, [&] { return a.connected > 0 && b.connected > 0; }));
}

TEST_CASE("a silent listener is given up within the time-out, and the text says where and why") {
  End a(1, patience(150)), b(2);
  REQUIRE(a.transport()
              .connect(kPeer, b.address())
              .ok());  // b is never polled: its kernel accepts, it says nothing
  CHECK(run({&a}, [&] { return !a.peer_failure.ok(); }));
  CHECK(a.peer_failure.code() == StatusCode::kUnavailable);
  CHECK(contains(a.peer_failure.text(), b.transport().local_endpoint()));
  CHECK(contains(a.peer_failure.text(), "no answer to the handshake"));
}

TEST_CASE("a port where nobody listens is named with the system's reason") {
  End a(1, patience(100));
  std::string gone;
  {
    End b(2);
    gone = b.transport().local_endpoint();
  }
  REQUIRE(a.transport().connect(kPeer, {{"node-2", 2}, gone}).ok());
  CHECK(run({&a}, [&] { return !a.peer_failure.ok(); }));
  CHECK(contains(a.peer_failure.text(), "refused"));
}

TEST_CASE("hostile handshakes: wrong version, wrong numbers, no handshake at all") {
  End b(9);
  REQUIRE(b.transport().connect(kPeer, {{"raw", 4}, "127.0.0.1:9"}).ok());
  Welcome welcome{};
  const auto refused_with = [&](const Hello& hello) {
    RawPeer raw(b);
    raw.say(hello);
    REQUIRE(raw.receive(&welcome, sizeof(welcome)));
    return std::string(ipc::text_of(welcome.text));
  };
  Hello hello = RawPeer(b).hello(4);
  hello.version = kWireVersion + 1;
  CHECK(contains(refused_with(hello), "wire version"));
  hello = RawPeer(b).hello(5);
  CHECK(contains(refused_with(hello), "does not know node raw"));
  hello = RawPeer(b).hello(4);
  hello.connection = 1;
  CHECK(contains(refused_with(hello), "connection 1 of 1"));
  hello.connections = hello.connection = 0xffffffffU;
  CHECK(contains(refused_with(hello), "limit is 64"));
  std::memset(hello.node, 'x', sizeof(hello.node));  // not terminated
  CHECK(contains(refused_with(hello), "does not know node xxx"));

  RawPeer stranger(b);
  stranger.send("GET / HTTP/1.1\r\n\r\n", 18);
  CHECK(stranger.closed());
  CHECK(b.connected == 0);
}

TEST_CASE("connecting twice, to oneself, or to no address is refused at once") {
  End a(1), b(2);
  REQUIRE(a.transport().connect(kPeer, b.address()).ok());
  CHECK(a.transport().connect(kPeer, b.address()).code() == StatusCode::kAlreadyExists);
  CHECK(a.transport().connect(6, a.address()).code() == StatusCode::kInvalidArgument);
  for (const char* endpoint : {"", "127.0.0.1", "127.0.0.1:", "127.0.0.1:99999", ":80", "host.invalid:80"}) {
    CAPTURE(endpoint);
    CHECK(a.transport().connect(7, {{"node-3", 3}, endpoint}).code() == StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace mkernel::transport::tcp
