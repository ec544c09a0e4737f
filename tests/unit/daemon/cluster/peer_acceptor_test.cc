// Who may wait at the peer port, and who comes into gRPC. Hosts are addresses of 127.0.0.0/8.
#include "daemon/cluster/peer_acceptor.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <vector>

#include "tests/unit/daemon/cluster/link_nodes.h"

namespace mkernel::cluster {
namespace {

constexpr const char* kHost = "127.0.0.1";
constexpr const char* kOther = "127.0.0.2";

/// An acceptor, and what it has handed on.
struct Door {
  explicit Door(AcceptorLimits limits, bool tls = false) {
    auto bound = PeerAcceptor::bind(io, PeerAcceptor::look_up("127.0.0.1:0").value(), tls, limits);
    REQUIRE(bound.ok());
    acceptor = std::move(bound).value();
    acceptor->start([this](ipc::UniqueFd connection) { inside.push_back(std::move(connection)); });
  }

  /// A connection from that address, accepted.
  ipc::UniqueFd dial(const char* from, const std::string& says = "") {
    ipc::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = ::inet_addr(from);
    REQUIRE(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    address.sin_addr.s_addr = ::inet_addr(kHost);
    address.sin_port = htons(acceptor->port());
    REQUIRE(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    say(fd, says);
    return fd;
  }
  static void say(const ipc::UniqueFd& fd, const std::string& text) {
    if (!text.empty()) REQUIRE(::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL) > 0);
  }
  /// The acceptor has closed it.
  static bool closed(const ipc::UniqueFd& fd) {
    char byte = 0;
    const ssize_t got = ::recv(fd.get(), &byte, 1, MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno != EAGAIN);
  }
  bool until(const std::function<bool()>& condition) { return run_until(io, condition); }

  boost::asio::io_context io;
  std::unique_ptr<PeerAcceptor> acceptor;
  std::vector<ipc::UniqueFd> inside;
};

AcceptorLimits few() {
  AcceptorLimits limits;
  limits.waiting = 8, limits.waiting_of_host = 4;
  limits.admitted = 6, limits.admitted_of_host = 3;
  limits.patience = kPatience;
  return limits;
}

}  // namespace

TEST_CASE("a connection is handed on when its first byte is there, and that byte is not taken") {
  Door door(few());
  const ipc::UniqueFd caller = door.dial(kHost);
  CHECK(door.until([&] { return door.acceptor->waiting() == 1; }));
  CHECK(door.inside.empty());
  Door::say(caller, "P");
  REQUIRE(door.until([&] { return door.inside.size() == 1; }));
  char byte = 0;
  CHECK(::recv(door.inside[0].get(), &byte, 1, 0) == 1);
  CHECK(byte == 'P');
  CHECK(door.acceptor->waiting() == 0);
}

TEST_CASE("what does not begin as the port's protocol does is closed") {
  Door plain(few()), tls(few(), true);
  const ipc::UniqueFd http1 = plain.dial(kHost, "GET /"), record = plain.dial(kHost, "\x16");
  const ipc::UniqueFd http2 = tls.dial(kHost, "PRI * HTTP/2.0"), hello = tls.dial(kHost, "\x16");
  CHECK(plain.until([&] { return Door::closed(http1) && Door::closed(record); }));
  CHECK(tls.until([&] { return Door::closed(http2) && tls.inside.size() == 1; }));
  CHECK(plain.inside.empty());
  CHECK_FALSE(Door::closed(hello));
}

TEST_CASE("silent connections of one host push each other out, the oldest first, and nobody else") {
  Door door(few());
  const ipc::UniqueFd other = door.dial(kOther);
  std::vector<ipc::UniqueFd> flood;
  for (int n = 0; n < 20; ++n) flood.push_back(door.dial(kHost));
  CHECK(door.until([&] { return Door::closed(flood[15]); }));
  CHECK(door.acceptor->waiting() == 5);
  for (std::size_t n = 0; n < 16; ++n) CHECK(Door::closed(flood[n]));
  for (std::size_t n = 16; n < 20; ++n) CHECK_FALSE(Door::closed(flood[n]));
  CHECK_FALSE(Door::closed(other));
  // Who speaks gets in beside them.
  const ipc::UniqueFd peer = door.dial(kHost, "P");
  CHECK(door.until([&] { return door.inside.size() == 1; }));
}

TEST_CASE("silent connections of many hosts: the oldest makes room") {
  Door door(few());
  std::vector<ipc::UniqueFd> flood;
  for (int n = 0; n < 20; ++n) flood.push_back(door.dial(("127.0.1." + std::to_string(n + 1)).c_str()));
  CHECK(door.until([&] { return Door::closed(flood[11]); }));
  CHECK(door.acceptor->waiting() == 8);
  CHECK_FALSE(Door::closed(flood[12]));
}

TEST_CASE(
    "a host that has all its places inside waits, another one does not, and a closed place is free again") {
  Door door(few());
  std::vector<ipc::UniqueFd> flood;
  for (int n = 0; n < 5; ++n) flood.push_back(door.dial(kHost, "P"));
  CHECK(door.until([&] { return door.inside.size() == 3 && door.acceptor->waiting() == 2; }));
  const ipc::UniqueFd other = door.dial(kOther, "P");
  CHECK(door.until([&] { return door.inside.size() == 4; }));
  CHECK(door.acceptor->waiting() == 2);
  door.inside.erase(door.inside.begin());
  CHECK(door.until([&] { return door.inside.size() == 4; }));
  CHECK(door.acceptor->waiting() == 1);
  CHECK(door.acceptor->admitted() == 4);
}

TEST_CASE("when all places are taken, a free one goes to the host that holds least") {
  Door door(few());
  std::vector<ipc::UniqueFd> flood;
  for (const char* host : {kHost, kOther}) {
    for (int n = 0; n < 4; ++n) flood.push_back(door.dial(host, "P"));
  }
  CHECK(door.until([&] { return door.inside.size() == 6 && door.acceptor->waiting() == 2; }));
  const ipc::UniqueFd peer = door.dial("127.0.0.3", "P");
  CHECK(door.until([&] { return door.acceptor->waiting() == 3; }));
  door.inside.erase(door.inside.begin());
  REQUIRE(door.until([&] { return door.inside.size() == 6; }));
  sockaddr_in from{};
  socklen_t size = sizeof(from);
  REQUIRE(::getpeername(door.inside.back().get(), reinterpret_cast<sockaddr*>(&from), &size) == 0);
  CHECK(from.sin_addr.s_addr == ::inet_addr("127.0.0.3"));
}

TEST_CASE("who says nothing is closed after the patience") {
  AcceptorLimits limits = few();
  limits.patience = milliseconds(1);
  Door door(limits);
  const ipc::UniqueFd silent = door.dial(kHost);
  CHECK(door.until([&] { return Door::closed(silent); }));
  CHECK(door.acceptor->waiting() == 0);
}

}  // namespace mkernel::cluster
