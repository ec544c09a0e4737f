#include "proto/ipc/fd.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <limits>
#include <string>

namespace mkernel::ipc {
namespace {

bool is_open(int fd) {
  return ::fcntl(fd, F_GETFD) >= 0;
}

std::uint64_t page() {
  return static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

TEST_CASE("an fd is owned once and closed once") {
  int raw = -1;
  {
    UniqueFd first(::memfd_create("test", MFD_CLOEXEC));
    raw = first.get();
    REQUIRE(is_open(raw));
    UniqueFd second(std::move(first));
    CHECK_FALSE(first.valid());  // NOLINT(bugprone-use-after-move): an fd that was moved from is empty
    CHECK(second.get() == raw);
    UniqueFd third;
    third = std::move(second);
    CHECK(is_open(raw));
    auto copy = third.duplicate();
    REQUIRE(copy.ok());
    CHECK(copy->get() != raw);
    CHECK((::fcntl(copy->get(), F_GETFD) & FD_CLOEXEC) != 0);
    CHECK(third.release() == raw);
    CHECK(is_open(raw));
    const UniqueFd again(raw);
  }
  CHECK_FALSE(is_open(raw));
  CHECK_FALSE(UniqueFd().duplicate().ok());
}

TEST_CASE("shared memory is zeroed, sealed and seen through every mapping") {
  auto fd = create_shared_memory("mk-test", 3 * page());
  REQUIRE(fd.ok());
  CHECK(::ftruncate(fd->get(), 1) != 0);
  CHECK(::ftruncate(fd->get(), static_cast<off_t>(100 * page())) != 0);
  auto first = Mapping::map(fd->get(), 0, 3 * page());
  auto second = Mapping::map(fd->get(), page(), page());
  REQUIRE(first.ok());
  REQUIRE(second.ok());
  CHECK(second->bytes() == page());
  CHECK(first->data()[page()] == std::byte{0});
  first->data()[page() + 5] = std::byte{42};
  CHECK(second->data()[5] == std::byte{42});
  *second->at<std::uint64_t>(64) = 7;
  CHECK(*first->at<std::uint64_t>(page() + 64) == 7);
}

TEST_CASE("only a sealed memfd that holds the whole region is accepted") {
  auto good = create_shared_memory("mk-test", 4 * page());
  REQUIRE(good.ok());
  const int fd = good->get();
  CHECK(check_shared_memory(fd, 0, 4 * page()).ok());
  CHECK(check_shared_memory(fd, page(), 3 * page()).ok());
  CHECK(check_shared_memory(fd, page(), 1).ok());

  CHECK(check_shared_memory(fd, 0, 0).code() == StatusCode::kInvalidArgument);
  CHECK(check_shared_memory(fd, 1, page()).code() == StatusCode::kInvalidArgument);
  const Status outside = check_shared_memory(fd, page(), 3 * page() + 1);
  CHECK(outside.code() == StatusCode::kOutOfRange);
  CHECK(outside.text().find(std::to_string(4 * page())) != std::string::npos);
  CHECK(check_shared_memory(fd, 8 * page(), 1).code() == StatusCode::kOutOfRange);
  // Sums that overflow must not come out small.
  const std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  CHECK(check_shared_memory(fd, page(), most).code() == StatusCode::kOutOfRange);
  CHECK(check_shared_memory(fd, most - page() + 1, page()).code() == StatusCode::kOutOfRange);

  const UniqueFd unsealed(::memfd_create("mk-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(::ftruncate(unsealed.get(), static_cast<off_t>(page())) == 0);
  CHECK(check_shared_memory(unsealed.get(), 0, page()).text().find("F_SEAL_SHRINK") != std::string::npos);

  const UniqueFd device(::open("/dev/null", O_RDWR | O_CLOEXEC));
  CHECK(check_shared_memory(device.get(), 0, page()).text().find("not a memfd") != std::string::npos);
  CHECK_FALSE(check_shared_memory(-1, 0, page()).ok());
}

/// Closes standard input while it lives.
struct NoStandardInput {
  NoStandardInput() : saved(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)) { ::close(STDIN_FILENO); }
  ~NoStandardInput() {
    if (saved >= 0) ::dup2(saved, STDIN_FILENO);
    if (saved >= 0) ::close(saved);
  }
  const int saved;
};

TEST_CASE("a program that has closed a standard fd does not get one of ours in its place") {
  const NoStandardInput closed;
  REQUIRE_FALSE(is_open(STDIN_FILENO));
  const auto event = create_event();
  REQUIRE(event.ok());
  CHECK(event->get() > STDERR_FILENO);
  const auto memory = create_shared_memory("test", page());
  REQUIRE(memory.ok());
  CHECK(memory->get() > STDERR_FILENO);
  const auto copy = memory->duplicate();
  REQUIRE(copy.ok());
  CHECK(copy->get() > STDERR_FILENO);
}

TEST_CASE("memory above RLIMIT_FSIZE is refused, and the process is not ended by a signal") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  rlimit small = before;
  small.rlim_cur = page();
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  const auto fits = create_shared_memory("test", page());
  const auto refused = create_shared_memory("test", 2 * page());
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  CHECK(fits.ok());
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.status().text().find("File too large") != std::string::npos);
  CHECK(refused.status().text().find("RLIMIT_FSIZE") != std::string::npos);
}

TEST_CASE("a mapping that cannot be is an error with a reason") {
  const auto mapping = Mapping::map(-1, 0, page());
  CHECK_FALSE(mapping.ok());
  CHECK_FALSE(mapping.status().text().empty());
}

TEST_CASE("an event starts at zero and does not block") {
  auto event = create_event();
  REQUIRE(event.ok());
  std::uint64_t value = 0;
  CHECK(::read(event->get(), &value, sizeof(value)) < 0);
  const std::uint64_t one = 1;
  CHECK(::write(event->get(), &one, sizeof(one)) == sizeof(one));
  CHECK(::read(event->get(), &value, sizeof(value)) == sizeof(value));
  CHECK(value == 1);
}

}  // namespace
}  // namespace mkernel::ipc
