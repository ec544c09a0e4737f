#include "daemon/transport/rdma/wake.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "daemon/transport/rdma/objects.h"

namespace mkernel::transport::rdma {

Status Wake::make(const std::string& who) {
  who_ = who;
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) return call_failed(who_, "epoll_create1", errno);
  timer_.reset(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!timer_.valid()) return call_failed(who_, "timerfd_create", errno);
  return watch(timer_.get());
}

/// Edge-triggered: a timer that went off is never read.
Status Wake::watch(int fd) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  event.data.fd = fd;
  const int failed = ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
  return failed == 0 ? Status() : call_failed(who_, "epoll_ctl", errno);
}

bool Wake::take() {
  std::array<epoll_event, 16> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  return std::any_of(events.begin(), events.begin() + std::max(count, 0),
                     [&](const epoll_event& event) { return event.data.fd != timer_.get(); });
}

void Wake::at(Time due, Time now) {
  if (due == due_ && due > now) return;
  due_ = due;
  itimerspec setting{};  // all zero: disarmed
  if (due != kNever) {
    using std::chrono::duration_cast;
    const auto since = std::max(due, now + std::chrono::microseconds(1)).time_since_epoch();
    const auto seconds = duration_cast<std::chrono::seconds>(since);
    setting.it_value.tv_sec = seconds.count();
    setting.it_value.tv_nsec = duration_cast<std::chrono::nanoseconds>(since - seconds).count();
  }
  ::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &setting, nullptr);
}

Status make_non_blocking(int fd, const std::string& device) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags >= 0 && ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0) return {};
  return call_failed(device, "making its events non-blocking", errno);
}

void take_notifications(const VerbsLibrary& verbs, ibv_comp_channel* channel, std::vector<PeerId>& peers) {
  ibv_cq* cq = nullptr;
  void* user = nullptr;
  while (verbs.get_cq_event(channel, &cq, &user) == 0) {
    verbs.ack_cq_events(cq, 1);
    peers.push_back(static_cast<PeerId>(reinterpret_cast<std::uintptr_t>(user)));
  }
}

void* peer_context(PeerId peer) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(peer));
}

}  // namespace mkernel::transport::rdma
