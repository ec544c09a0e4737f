// What wakes a transport's owner, and what it is told when it looks.
#include "daemon/transport/rdma/wake.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace mkernel::transport::rdma {
namespace {

bool readable(const Wake& wake, int timeout_ms = 0) {
  pollfd one{wake.fd(), POLLIN, 0};
  return ::poll(&one, 1, timeout_ms) == 1;
}

TEST_CASE("a descriptor that becomes readable wakes, once, and is told from the timer") {
  Wake wake;
  REQUIRE(wake.make("test").ok());
  const ipc::UniqueFd event(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  REQUIRE(wake.watch(event.get()).ok());
  CHECK_FALSE(readable(wake));
  CHECK_FALSE(wake.take());

  const Time now = Clock::now();
  wake.at(now, now);  // in the past: at once
  CHECK(readable(wake, 10000));
  CHECK_FALSE(wake.take());
  CHECK_FALSE(readable(wake));

  const std::uint64_t one = 1;
  REQUIRE(::write(event.get(), &one, sizeof(one)) == sizeof(one));
  CHECK(readable(wake));
  CHECK(wake.take());
  CHECK_FALSE(wake.take());
}

TEST_CASE("a timer that is not wanted any more does not go off") {
  Wake wake;
  REQUIRE(wake.make("test").ok());
  const Time now = Clock::now();
  wake.at(now + std::chrono::hours(1), now);
  wake.at(now, now);
  CHECK(readable(wake, 10000));
  wake.at(kNever, now);
  CHECK_FALSE(readable(wake));
}

TEST_CASE("a descriptor that cannot be watched is an error that names its owner") {
  Wake wake;
  REQUIRE(wake.make("EFA transport").ok());
  CHECK(wake.watch(-1).text().find("EFA transport: epoll_ctl") != std::string::npos);
}

}  // namespace
}  // namespace mkernel::transport::rdma
