#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/unit/client/ranks.h"

namespace mkernel::test {
namespace {

Result<Session> connect(const FakeDaemon& daemon, std::chrono::milliseconds timeout = kLong) {
  return Session::connect({.socket = daemon.socket(), .name = "test", .timeout = timeout});
}

TEST_CASE("a session knows its daemon and ends with its handles") {
  FakeDaemon daemon;
  {
    auto session = connect(daemon);
    REQUIRE_MESSAGE(session.ok(), session.status().to_string());
    CHECK(session->id() == 7);
    CHECK(session->node_name() == "node0");
    check_ok(session->status());
    CHECK(daemon.look().sessions == 1);
  }
  CHECK(eventually([&] { return daemon.look().sessions == 0; }));
}

TEST_CASE("fallbacks of several threads are all counted, also once the daemon is gone") {
  FakeDaemon daemon;
  auto session = connect(daemon);
  REQUIRE_MESSAGE(session.ok(), session.status().to_string());
  constexpr std::uint64_t kEach = 5000;
  on_all_ranks(4, [&](std::uint32_t) {
    for (std::uint64_t i = 0; i < kEach; ++i) check_ok(session->count_fallback());
  });
  CHECK(daemon.look().fallbacks == 4 * kEach);
  CHECK(daemon.look().launches == 0);
  daemon.die();
  CHECK(eventually([&] { return !session->status().ok(); }));
  check_ok(session->count_fallback());
}

TEST_CASE("bad options are refused by name, value and limit") {
  check_status(Session::connect({.socket = std::string(200, 'x')}).status(), StatusCode::kInvalidArgument,
               "107");
  check_status(Session::connect({.name = std::string(64, 'n')}).status(), StatusCode::kInvalidArgument, "63");
  check_status(Session::connect({.weight = 65}).status(), StatusCode::kInvalidArgument, "65");
  check_status(Session::connect({.timeout = 0ms}).status(), StatusCode::kInvalidArgument, "timeout");
  check_status(Session::connect({.socket = "/nonexistent/socket"}).status(), StatusCode::kUnavailable,
               "is mkerneld running");
}

TEST_CASE("a daemon of another version is named with both versions") {
  FakeDaemon daemon({.version = abi::kVersion + 1});
  check_status(connect(daemon).status(), StatusCode::kFailedPrecondition,
               "version " + std::to_string(abi::kVersion + 1));
  check_status(connect(daemon).status(), StatusCode::kFailedPrecondition,
               "version " + std::to_string(abi::kVersion));
}

TEST_CASE("a daemon that does not answer ends in a deadline") {
  FakeDaemon daemon;
  daemon.ignore(abi::MessageType::kHello);
  check_status(connect(daemon, kShort).status(), StatusCode::kDeadlineExceeded, daemon.socket());
}

TEST_CASE("a daemon that goes away is named, and so is the reason it gave") {
  FakeDaemon daemon;
  auto killed = connect(daemon);
  REQUIRE(killed.ok());
  daemon.die();
  CHECK(eventually([&] { return !killed->status().ok(); }));
  check_status(killed->status(), StatusCode::kUnavailable, "daemon of node node0 closed the session socket");
  check_status(killed->join(group_options(1, 0)).status(), StatusCode::kUnavailable, "node0");

  FakeDaemon strict;
  auto ended = connect(strict);
  REQUIRE(ended.ok());
  strict.end_sessions({StatusCode::kInvalidArgument, "slot 3 names a foreign channel"});
  CHECK(eventually([&] { return !ended->status().ok(); }));
  check_status(ended->status(), StatusCode::kInvalidArgument, "slot 3 names a foreign channel");
}

/// A session socket whose other side the test plays by hand.
struct Listener {
  Listener() {
    char made[] = "/tmp/mkernel-session-XXXXXX";
    REQUIRE(::mkdtemp(made) != nullptr);
    folder = made;
    path = folder + "/socket";
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    REQUIRE(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    REQUIRE(::listen(socket.get(), 4) == 0);
  }
  ~Listener() {
    ::unlink(path.c_str());
    ::rmdir(folder.c_str());
  }
  ipc::UniqueFd accept() const { return ipc::UniqueFd(::accept(socket.get(), nullptr, nullptr)); }

  std::string folder, path;
  const ipc::UniqueFd socket{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
};

TEST_CASE("a refusal arrives whatever the client was doing when the daemon closed its socket") {
  // Half of those above users.default.max_connections read "Broken pipe" instead of the reason.
  const Listener listener;
  abi::SessionEnded refusal{};
  refusal.header = ipc::header_of<abi::SessionEnded>(abi::MessageType::kSessionEnded, 0);
  refusal.status = ipc::to_reply({StatusCode::kPermissionDenied, "user 7 may not use mkernel"});
  for (int i = 0; i < 200; ++i) {
    std::thread daemon([&] {
      const ipc::UniqueFd client = listener.accept();
      CHECK(ipc::send_message(client.get(), refusal).ok());
    });
    const auto session = Session::connect({.socket = listener.path, .timeout = kLong});
    daemon.join();
    check_status(session.status(), StatusCode::kPermissionDenied, "user 7 may not use mkernel");
  }
}

TEST_CASE("garbage on the socket ends the session instead of being believed") {
  const Listener listener;
  const std::vector<std::pair<std::vector<std::uint32_t>, std::string>> cases = {
      {{1, 2}, "malformed packet of 8 bytes"},
      {{1, 2, 3, 4}, "no message"},
      {{abi::kMagic, abi::kVersion, (64U << 16) | 101, 1}, "claims 64"},
      {{abi::kMagic, abi::kVersion, (16U << 16) | 101, 1}, "of 16 bytes instead of type 101 of 568"},
      {{abi::kMagic, abi::kVersion, (16U << 16) | 107, 1}, "with type 107"},
      {{abi::kMagic, abi::kVersion, (16U << 16) | 99, 0}, "unknown event 99"},
  };
  for (const auto& [words, expected] : cases) {
    std::thread liar([&, sent = std::as_bytes(std::span(words))] {
      const ipc::UniqueFd peer = listener.accept();
      ipc::Packet hello;
      CHECK(ipc::receive_packet(peer.get(), hello).ok());
      CHECK(ipc::send_packet(peer.get(), sent).ok());
      CHECK_FALSE(ipc::receive_packet(peer.get(), hello).ok());  // until the client hangs up
    });
    const auto session = Session::connect({.socket = listener.path, .timeout = kLong});
    check_status(session.status(), StatusCode::kInternal, expected);
    liar.join();
  }
}

}  // namespace
}  // namespace mkernel::test
