// Connections that say nothing, too little or the wrong thing, in numbers: they cost a bounded number of
// sockets for a bounded time, and no peer waits for them.
#include <poll.h>
#include <sys/resource.h>

#include <cstring>

#include "daemon/transport/tcp/acceptor.h"
#include "tests/support/thread_time.h"
#include "tests/unit/daemon/transport/tcp/harness.h"

namespace mkernel::transport::tcp {
namespace {

using std::chrono::milliseconds;

/// Connects without waiting for an answer, and says `greeting`.
ipc::UniqueFd call(End& target, std::string_view greeting = {}) {
  auto socket = dial(parse_endpoint(target.transport().local_endpoint()).value()).value();
  if (!greeting.empty()) {
    pollfd wanted{socket.get(), POLLOUT, 0};
    REQUIRE(::poll(&wanted, 1, 5000) == 1);
    REQUIRE(send_whole(socket.get(), greeting.data(), greeting.size()));
  }
  return socket;
}

bool hung_up(const ipc::UniqueFd& socket) {
  pollfd wanted{socket.get(), POLLRDHUP, 0};
  return ::poll(&wanted, 1, 0) > 0 && (wanted.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

std::vector<ipc::UniqueFd> crowd(End& target, std::size_t count) {
  rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
  limit.rlim_cur = limit.rlim_max;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
  // Both ends are in this process; the kernel's queue takes net.core.somaxconn of them.
  std::vector<ipc::UniqueFd> sockets;
  while (sockets.size() < count) sockets.push_back(call(target));
  return sockets;
}

TEST_CASE("peers get through at once while 3500 connections say nothing") {
  TcpOptions options;
  options.base.peer_timeout = milliseconds(10000);
  End a(1, options), b(2, options);
  const auto idle = crowd(b, 3500);  // ahead of the peer in the queue of the kernel, and none is ever closed
  const auto began = Clock::now();
  connect(a, b);
  int long_polls = 0;
  CHECK(run({&a, &b}, [&] {
    const auto before = test::thread_time();
    b.transport().poll();
    if (test::thread_time() - before > milliseconds(10)) ++long_polls;
    return a.connected > 0 && b.connected > 0;
  }));
  CHECK(Clock::now() - began < options.base.peer_timeout / 2);
  CHECK(long_polls <= 1);  // that one is the host's
  CHECK(b.tcp().statistics().strangers_dropped >= 3500 - kMaxIncomingPerSource - 8);
  // Those that are left go in their turn, without another connection to make room for.
  CHECK(run({&a, &b}, [&] { return std::all_of(idle.begin(), idle.end(), hung_up); }));
}

TEST_CASE("a connection has half a second for its Hello, a second for its proof, and no more") {
  End b(9);
  REQUIRE(b.transport().connect(kPeer, {{"raw", 4}, "127.0.0.1:9"}).ok());
  const auto silent = call(b);
  RawPeer greeting(b);
  greeting.say(greeting.hello(4));
  Challenge challenge{};
  REQUIRE(greeting.receive(&challenge, sizeof(challenge)));
  const auto began = Clock::now();
  CHECK(run({&b}, [&] { return hung_up(silent); }));
  CHECK(Clock::now() - began >= kHelloPatience - milliseconds(100));
  CHECK(greeting.closed());
  CHECK(Clock::now() - began >= kProofPatience - milliseconds(100));
  CHECK(Clock::now() - began < milliseconds(5000));
}

TEST_CASE("who has named a peer outstays those who have not") {
  End b(9);
  REQUIRE(b.transport().connect(kPeer, {{"raw", 4}, "127.0.0.1:9"}).ok());
  PeerSecret secret = raw_secret(b, 4);
  agree(b, secret);
  RawPeer peer(b);
  const Hello hello = peer.hello(4);
  const Welcome welcome = peer.greet(hello, [&](const Hello& said, const Challenge& challenge) {
    // While its proof is on its way a crowd comes, and the room is full several times over.
    const auto idle = crowd(b, 3 * kMaxIncomingPerSource);
    REQUIRE(run({&b}, [&] { return b.tcp().statistics().strangers_dropped >= 2 * kMaxIncomingPerSource; }));
    return secret.prove(Prover::kDialler, {bytes_of_layout(said), bytes_of_layout(challenge)});
  });
  CHECK(welcome.code == 0);
}

TEST_CASE("what is no handshake is hung up on at once, without an answer") {
  End b(9);
  RawPeer web(b);
  web.send("GET / HTTP/1.1\r\n\r\n", 18);
  CHECK(web.closed());
  RawPeer brief(b);
  brief.send("MKCP", 4);
  RawPeer old(b);
  Hello hello = old.hello(4);
  hello.version = 1;  // its Hello was shorter
  old.send(&hello, 96);
  Challenge challenge{};
  REQUIRE(old.receive(&challenge, sizeof(challenge)));
  CHECK(challenge.code == static_cast<std::uint32_t>(StatusCode::kFailedPrecondition));
  CHECK(challenge.version == kWireVersion);
  CHECK(challenge.nonce == SecretBytes{});
  CHECK(b.connected == 0);
}

}  // namespace
}  // namespace mkernel::transport::tcp
