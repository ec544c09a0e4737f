#include "daemon/dataplane/sleeper.h"

#include <poll.h>
#include <sys/epoll.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

namespace mkernel::dataplane {

Sleeper::Sleeper(base::Mailbox& mailbox, int transport_fd)
    : mailbox_(mailbox), epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_.valid()) throw std::runtime_error(std::string("proxy: epoll_create1: ") + std::strerror(errno));
  Status watched = watch(mailbox_.event_fd(), EPOLLIN);
  if (watched.ok() && transport_fd >= 0) watched = watch(transport_fd, EPOLLIN);
  if (!watched.ok()) throw std::runtime_error("proxy: " + watched.to_string());
}

Status Sleeper::watch(int fd, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return {};
  return {StatusCode::kInternal, "epoll cannot watch fd " + std::to_string(fd) + ": " + std::strerror(errno)};
}

Status Sleeper::watch_doorbell(int fd) {
  return watch(fd, EPOLLIN | EPOLLET);
}

void Sleeper::unwatch_doorbell(int fd) {
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void Sleeper::wait(std::optional<std::chrono::nanoseconds> limit) {
  if (mailbox_.begin_sleep()) {
    // ppoll on the epoll fd: naps are microseconds, epoll_wait counts in milliseconds.
    pollfd whole{epoll_.get(), POLLIN, 0};
    timespec time{};
    if (limit.has_value()) {
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(*limit);
      time.tv_sec = seconds.count();
      time.tv_nsec = static_cast<long>((*limit - seconds).count());
    }
    if (::ppoll(&whole, 1, limit.has_value() ? &time : nullptr, nullptr) > 0) {
      std::array<epoll_event, 64>
          events;  // only to consume the edges: what rang is found by looking at all rings
      ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
    }
  }
  mailbox_.end_sleep();
}

}  // namespace mkernel::dataplane
