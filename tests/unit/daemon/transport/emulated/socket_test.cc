#include "daemon/transport/emulated/socket.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

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
  CHECK(!accept_from(listener->get()).valid());
  auto socket = dial(address);
  REQUIRE(socket.ok());
  CHECK(accept_from(listener->get()).valid());
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
