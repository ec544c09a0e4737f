#include "daemon/transport/emulated/socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "daemon/base/id_map.h"
#include "proto/ipc/packet.h"

namespace mkernel::transport::emulated {
namespace {

using std::chrono::nanoseconds;
using std::chrono::steady_clock;

Status system_error(StatusCode code, const std::string& what) {
  return {code, "emulated: " + what + ": " + std::strerror(errno)};
}

struct Address {
  sockaddr_un name{};
  socklen_t bytes = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }
};

Result<Address> resolve(const std::string& text) {
  Address address;
  const std::size_t limit = sizeof(address.name.sun_path) - 1;
  if (text.empty() || text.size() > limit) {
    return Status{StatusCode::kInvalidArgument, "emulated: socket address '" + text + "' has " +
                                                    std::to_string(text.size()) +
                                                    " characters, allowed are 1 to " + std::to_string(limit)};
  }
  address.name.sun_family = AF_UNIX;
  std::memcpy(address.name.sun_path, text.data(), text.size());
  const bool abstract = text.front() == '@';
  if (abstract) address.name.sun_path[0] = '\0';
  address.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + text.size() + (abstract ? 0 : 1));
  return address;
}

Result<ipc::UniqueFd> make_socket() {
  ipc::UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return system_error(StatusCode::kResourceExhausted, "socket");
  return fd;
}

/// True when `address` is a path whose process is gone: nobody answers there. A file that is no socket is
/// somebody's, and nobody answers there either.
bool left_behind(const std::string& address) {
  if (address.front() == '@') return false;
  struct stat status {};
  if (::lstat(address.c_str(), &status) != 0 || !S_ISSOCK(status.st_mode)) return false;
  auto probe = make_socket();
  auto to = resolve(address);
  return probe.ok() && to.ok() && ::connect(probe->get(), to->get(), to->bytes) != 0 && errno == ECONNREFUSED;
}

/// The user of the process at the other end, as the kernel knows it; none when it cannot say.
std::optional<uid_t> user_of(int socket) {
  ucred who{};
  socklen_t bytes = sizeof(who);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &bytes) != 0) return std::nullopt;
  return who.uid;
}

bool trusted(std::optional<uid_t> user) {
  if (!user.has_value()) return false;
  return *user == 0 || (*user == ::geteuid() && base::check_known_user(*user).ok());
}

void turn_away(ipc::UniqueFd fd, std::optional<uid_t> user, base::OwnerWorkers& strangers) {
  ::shutdown(fd.get(), SHUT_RDWR);
  if (ipc::discard_packets(fd.get())) return;
  strangers.post(user.value_or(0), [held = std::make_shared<ipc::UniqueFd>(std::move(fd))] {});
}

}  // namespace

std::string address_of(const EmulatedOptions& options) {
  std::string node = options.base.identity.node.substr(0, 40);
  std::replace(node.begin(), node.end(), '/', '_');
  const std::string name = "mkernel-emulated-" + node + "-" + std::to_string(options.base.identity.boot_id) +
                           "-" + std::to_string(options.rail);
  return options.runtime_dir.empty() ? "@" + name : options.runtime_dir + "/" + name;
}

Result<ipc::UniqueFd> listen_at(const std::string& address) {
  auto to = resolve(address);
  if (!to.ok()) return to.status();
  auto fd = make_socket();
  if (!fd.ok()) return fd.status();
  int failed = ::bind(fd->get(), to->get(), to->bytes);
  if (failed != 0 && errno == EADDRINUSE && left_behind(address)) {
    ::unlink(address.c_str());
    failed = ::bind(fd->get(), to->get(), to->bytes);
  }
  if (failed != 0 && errno == EADDRINUSE) {
    return Status{StatusCode::kAlreadyExists,
                  "emulated: the address " + address + " is in use by another transport"};
  }
  if (failed != 0) return system_error(StatusCode::kUnavailable, "bind to " + address);
  if (::listen(fd->get(), SOMAXCONN) != 0)
    return system_error(StatusCode::kUnavailable, "listen at " + address);
  return fd;
}

Result<ipc::UniqueFd> dial(const std::string& address) {
  auto to = resolve(address);
  if (!to.ok()) return to.status();
  auto fd = make_socket();
  if (!fd.ok()) return fd.status();
  if (::connect(fd->get(), to->get(), to->bytes) != 0) {
    return system_error(StatusCode::kUnavailable, "connect to " + address);
  }
  const auto user = user_of(fd->get());
  if (!trusted(user)) {
    return Status{StatusCode::kPermissionDenied,
                  "emulated: a process of user " + (user ? std::to_string(*user) : "?") + " listens at " +
                      address + ", not one of user " + std::to_string(::geteuid()) + " or root"};
  }
  return fd;
}

ipc::UniqueFd accept_from(int listener, base::OwnerWorkers& strangers) {
  ipc::UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!fd.valid()) return fd;
  const auto user = user_of(fd.get());
  if (trusted(user)) return fd;
  turn_away(std::move(fd), user, strangers);
  return {};
}

void stop_listening(ipc::UniqueFd listener, base::OwnerWorkers& strangers) {
  ::shutdown(listener.get(), SHUT_RDWR);  // nobody connects any more
  for (;;) {
    ipc::UniqueFd fd(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) return;
    const auto user = user_of(fd.get());
    turn_away(std::move(fd), user, strangers);
  }
}

Result<Wakeup> Wakeup::create() {
  Wakeup wakeup;
  wakeup.epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!wakeup.epoll_.valid()) return system_error(StatusCode::kResourceExhausted, "epoll_create1");
  wakeup.timer_.reset(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!wakeup.timer_.valid()) return system_error(StatusCode::kResourceExhausted, "timerfd_create");
  wakeup.add(wakeup.timer_.get(), kTimerToken);
  return wakeup;
}

void Wakeup::add(int fd, std::uint64_t token) {
  epoll_event event{EPOLLIN, {.u64 = token}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
}

void Wakeup::remove(int fd) {
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void Wakeup::want_write(int fd, std::uint64_t token, bool wanted) {
  epoll_event event{EPOLLIN | (wanted ? EPOLLOUT : 0U), {.u64 = token}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void Wakeup::arm(std::optional<steady_clock::time_point> when) {
  // A timer that goes off too early costs one empty poll; setting it anew each time costs a system call per
  // poll.
  if (!when || (armed_ && *armed_ <= *when)) return;
  armed_ = when;
  const auto since_boot =
      std::max(nanoseconds(1), std::chrono::duration_cast<nanoseconds>(when->time_since_epoch()));
  itimerspec at{};
  at.it_value.tv_sec = static_cast<time_t>(since_boot.count() / 1'000'000'000);
  at.it_value.tv_nsec = static_cast<long>(since_boot.count() % 1'000'000'000);
  ::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &at, nullptr);
}

std::span<const epoll_event> Wakeup::poll() {
  int count = 0;
  do {
    count = ::epoll_wait(epoll_.get(), events_, kEvents, 0);
  } while (count < 0 && errno == EINTR);
  count = std::max(count, 0);
  for (int i = 0; i < count; ++i) {
    if (events_[i].data.u64 != kTimerToken) continue;
    std::uint64_t expirations = 0;
    if (::read(timer_.get(), &expirations, sizeof(expirations)) > 0) armed_.reset();
    std::swap(events_[i], events_[--count]);
    break;
  }
  return {events_, static_cast<std::size_t>(count)};
}

}  // namespace mkernel::transport::emulated
