// Whose process holds the other end of a loopback connection. The other user is a child of the test.
#include "daemon/cluster/local_end.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <string>

#include "proto/ipc/fd.h"

namespace mkernel::cluster {
namespace {

constexpr uid_t kNobody = 65534;

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

std::uint16_t port_of(int fd, int (*name)(int, sockaddr*, socklen_t*)) {
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  REQUIRE(name(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  return ntohs(address.sin_port);
}

ipc::UniqueFd listener() {
  ipc::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback(0);
  REQUIRE(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  REQUIRE(::listen(fd.get(), 8) == 0);
  return fd;
}

ipc::UniqueFd connected(std::uint16_t port) {
  ipc::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback(port);
  REQUIRE(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  return fd;
}

/// A process of another user that does something and then waits until it is destroyed. System calls only: it
/// is forked from a process with threads.
class Stranger {
 public:
  explicit Stranger(const std::function<bool()>& act) {
    int pipe[2];
    REQUIRE(::pipe(pipe) == 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      const bool done = ::setresuid(kNobody, kNobody, kNobody) == 0 && act();
      const char word = done ? 'y' : 'n';
      static_cast<void>(!::write(pipe[1], &word, 1));
      for (;;) ::pause();
    }
    char word = 0;
    REQUIRE(::read(pipe[0], &word, 1) == 1);
    REQUIRE(word == 'y');
    ::close(pipe[0]);
    ::close(pipe[1]);
  }
  ~Stranger() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_ = 0;
};

bool can_be_another_user() {
  if (::geteuid() == 0) return true;
  MESSAGE("skipped: only root can become another user");
  return false;
}

bool dial_as_stranger(std::uint16_t port, bool hang_up) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in address = loopback(port);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) return false;
  if (::send(fd, "hello", 5, 0) != 5) return false;
  if (hang_up) ::close(fd);
  return true;
}

}  // namespace

TEST_CASE("this user's own processes are let through, from both sides") {
  const auto port_listener = listener();
  const std::uint16_t port = port_of(port_listener.get(), ::getsockname);
  const auto near = connected(port);
  const ipc::UniqueFd far(::accept(port_listener.get(), nullptr, nullptr));
  REQUIRE(far.valid());
  const std::uint16_t dialler = port_of(near.get(), ::getsockname);
  CHECK(check_local_end("127.0.0.1", dialler, port, Side::kAccepted).ok());
  CHECK(check_local_end("[::ffff:127.0.0.1]", dialler, port, Side::kAccepted).ok());
  CHECK(check_local_end("127.0.0.1", port, 0, Side::kDialled).ok());
  const auto ends = local_sockets(dialler, port);
  REQUIRE(ends.ok());
  REQUIRE(ends.value().size() == 1);
  CHECK(ends.value()[0].uid == ::geteuid());
  CHECK(ends.value()[0].host == "127.0.0.1");
}

TEST_CASE(
    "an end on loopback that nobody is known to hold is refused; one of another host is none of this one's") {
  const Status nobody = check_local_end("127.0.0.1", 1, 0, Side::kAccepted);
  CHECK(nobody.code() == StatusCode::kPermissionDenied);
  CHECK(nobody.text() == "nobody is known to hold the connection from 127.0.0.1:1");
  CHECK(check_local_end("192.0.2.7", 7600, 0, Side::kAccepted).ok());
}

TEST_CASE("another user who dials is refused and named, also after it has hung up") {
  if (!can_be_another_user()) return;
  const auto port_listener = listener();
  const std::uint16_t port = port_of(port_listener.get(), ::getsockname);
  for (const bool hangs_up : {false, true}) {
    CAPTURE(hangs_up);
    const Stranger stranger([&] { return dial_as_stranger(port, hangs_up); });
    const ipc::UniqueFd far(::accept(port_listener.get(), nullptr, nullptr));
    REQUIRE(far.valid());
    const Status status =
        check_local_end("127.0.0.1", port_of(far.get(), ::getpeername), port, Side::kAccepted);
    CHECK(status.code() == StatusCode::kPermissionDenied);
    const std::string expected =
        hangs_up ? "nobody is known" : "uid 65534 holds the connection from 127.0.0.1:";
    CHECK_MESSAGE(status.text().find(expected) != std::string::npos, status.text());
  }
}

TEST_CASE("another user who has taken the port that is dialled is refused and named") {
  if (!can_be_another_user()) return;
  const auto port_listener = listener();
  const std::uint16_t port = port_of(port_listener.get(), ::getsockname);
  const auto near = connected(port);
  // The socket belongs to whoever accepts.
  const Stranger stranger([&] { return ::accept(port_listener.get(), nullptr, nullptr) >= 0; });
  const Status status =
      check_local_end("127.0.0.1", port, port_of(near.get(), ::getsockname), Side::kDialled);
  CHECK(status.code() == StatusCode::kPermissionDenied);
  CHECK_MESSAGE(status.text().find("uid 65534 holds") != std::string::npos, status.text());
}

}  // namespace mkernel::cluster
