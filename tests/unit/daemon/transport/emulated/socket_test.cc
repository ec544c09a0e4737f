#include "daemon/transport/emulated/socket.h"

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "proto/ipc/packet.h"

namespace mkernel::transport::emulated {
namespace {

EmulatedOptions options_for(std::uint64_t boot_id) {
  EmulatedOptions options;
  options.base.identity = {"socket-test-" + std::to_string(::getpid()), boot_id};
  return options;
}

/// A folder of its own, removed at the end.
struct Folder {
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "mkernel-test-XXXXXX").string();
    path = ::mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path;
};

bool readable(int fd, int limit_ms) {
  pollfd wanted{fd, POLLIN, 0};
  return ::poll(&wanted, 1, limit_ms) == 1;
}

TEST_CASE("an address in use is refused with its name") {
  const auto options = options_for(1);
  auto first = make_emulated(options);
  REQUIRE(first.ok());
  auto second = make_emulated(options);
  REQUIRE(!second.ok());
  CHECK(second.status().code() == StatusCode::kAlreadyExists);
  CHECK(second.status().text().find((*first)->local_endpoint()) != std::string::npos);
  auto other_rail = options;
  other_rail.rail = 1;
  CHECK(make_emulated(other_rail).ok());
}

TEST_CASE(
    "a socket file: refused while its owner lives, taken over when it is a leftover, removed on close") {
  Folder folder;
  auto options = options_for(2);
  options.runtime_dir = folder.path;
  const std::string path = address_of(options);
  {
    auto first = make_emulated(options);
    REQUIRE(first.ok());
    CHECK(std::filesystem::exists(path));
    CHECK(make_emulated(options).status().code() == StatusCode::kAlreadyExists);
  }
  CHECK(!std::filesystem::exists(path));
  {
    auto leftover = listen_at(path);  // closed without unlink, as by kill -9
    REQUIRE(leftover.ok());
  }
  REQUIRE(std::filesystem::exists(path));
  CHECK(make_emulated(options).ok());
  CHECK(!std::filesystem::exists(path));
}

TEST_CASE("an address that does not fit is refused with the limit") {
  auto options = options_for(3);
  options.runtime_dir = "/" + std::string(200, 'x');
  const auto made = make_emulated(options);
  REQUIRE(!made.ok());
  CHECK(made.status().code() == StatusCode::kInvalidArgument);
  CHECK(made.status().text().find("107") != std::string::npos);
}

TEST_CASE("nobody to dial is unavailable, somebody is connected") {
  CHECK(dial("@mkernel-nobody-listens-here").status().code() == StatusCode::kUnavailable);
  const std::string address = address_of(options_for(4));
  auto listener = listen_at(address);
  REQUIRE(listener.ok());
  base::OwnerWorkers workers("test");
  CHECK(!accept_from(listener->get(), workers).valid());
  auto socket = dial(address);
  REQUIRE(socket.ok());
  CHECK(accept_from(listener->get(), workers).valid());
}

TEST_CASE("a file that is no socket is never taken for a leftover") {
  Folder folder;
  auto options = options_for(5);
  options.runtime_dir = folder.path;
  const std::string path = address_of(options);
  std::ofstream(path) << "somebody's";
  CHECK_FALSE(make_emulated(options).ok());
  CHECK(std::filesystem::file_size(path) == 10);
}

/// Runs `what` as uid 65534 in a process of its own, and returns whether it said yes.
template <typename What>
bool as_nobody(What what) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(::setuid(65534) == 0 && what() ? 0 : 1);
  int status = 1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST_CASE("another user neither gets in nor is taken for a node that we dial") {
  if (::geteuid() != 0) {
    MESSAGE("SKIPPED: playing two users needs root");
    return;
  }
  // He dials: the kernel knows who he is, whatever he says.
  const std::string ours = address_of(options_for(6));
  auto listener = listen_at(ours);
  REQUIRE(listener.ok());
  base::OwnerWorkers workers("test");
  REQUIRE(as_nobody([&] {  // root listens there, whom everybody trusts
    auto socket = dial(ours);
    return socket.ok();
  }));
  CHECK(readable(listener->get(), 10000));
  CHECK(!accept_from(listener->get(), workers).valid());
  CHECK(!readable(listener->get(), 0));  // turned away, not left waiting

  // He listens at the address of a node that is gone.
  const std::string stolen = address_of(options_for(7));
  int ready[2], done[2];
  REQUIRE((::pipe(ready) == 0 && ::pipe(done) == 0));
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setuid(65534) != 0) ::_exit(1);
    const auto held = listen_at(stolen);
    if (!held.ok()) ::_exit(1);
    char word = 1;
    [[maybe_unused]] auto said = ::write(ready[1], &word, 1);
    said = ::read(done[0], &word, 1);
    ::_exit(0);
  }
  ::close(ready[1]);  // so that a child that fails is seen
  char word = 0;
  REQUIRE(::read(ready[0], &word, 1) == 1);
  const Status refused = dial(stolen).status();
  CHECK(refused.code() == StatusCode::kPermissionDenied);
  CHECK(refused.text().find("user 65534") != std::string::npos);
  REQUIRE(::write(done[1], &word, 1) == 1);
  int status = 1;
  CHECK(::waitpid(child, &status, 0) == child);
}

/// A TCP connection with bytes that nobody takes: the last close() of its near end waits an hour for them.
struct Lingering {
  Lingering() {
    const ipc::UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* name = reinterpret_cast<sockaddr*>(&address);
    REQUIRE(::bind(listener.get(), name, size) == 0);
    REQUIRE(::listen(listener.get(), 1) == 0);
    REQUIRE(::getsockname(listener.get(), name, &size) == 0);
    near.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(::connect(near.get(), name, size) == 0);
    far.reset(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const std::vector<char> bytes(1 << 16);
    while (::send(near.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
    }
    const linger hour{1, 3600}, reset{1, 0};
    REQUIRE(::setsockopt(near.get(), SOL_SOCKET, SO_LINGER, &hour, sizeof(hour)) == 0);
    REQUIRE(::setsockopt(far.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)) == 0);
  }
  ipc::UniqueFd far, near;
};

TEST_CASE("what a stranger sends before he is turned away is closed where it delays no put") {
  if (::geteuid() != 0) {
    MESSAGE("SKIPPED: playing two users needs root");
    return;
  }
  const std::string address = address_of(options_for(8));
  auto listener = listen_at(address);
  REQUIRE(listener.ok());
  Lingering sent;
  const auto send_it = [&] {
    REQUIRE(as_nobody([&] {
      auto socket = dial(address);
      const std::byte byte{};
      const int fd = sent.near.get();
      return socket.ok() && ipc::send_packet(socket->get(), {&byte, 1}, {&fd, 1}).ok();
    }));
  };
  send_it();
  send_it();
  sent.near.reset();  // what the listener holds are the last ones
  base::OwnerWorkers workers("test");
  REQUIRE(readable(listener->get(), 10000));
  CHECK(!accept_from(listener->get(), workers).valid());
  stop_listening(std::move(listener).value(), workers);
  // Both returned. Now nothing lingers any more, and the connection ends.
  sent.far.reset();
}

TEST_CASE("the timer makes the set readable, and polling it makes it quiet again") {
  auto wakeup = Wakeup::create();
  REQUIRE(wakeup.ok());
  CHECK(!readable(wakeup->fd(), 0));
  const auto now = std::chrono::steady_clock::now();
  wakeup->arm(now + std::chrono::hours(1));
  CHECK(!readable(wakeup->fd(), 0));
  wakeup->arm(now + std::chrono::milliseconds(5));  // earlier than before
  CHECK(readable(wakeup->fd(), 10000));
  CHECK(wakeup->poll().empty());
  CHECK(!readable(wakeup->fd(), 0));
  wakeup->arm(std::chrono::steady_clock::time_point::min());  // long past: at once
  CHECK(readable(wakeup->fd(), 10000));
}

}  // namespace
}  // namespace mkernel::transport::emulated
