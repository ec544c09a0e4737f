#include "daemon/transport/tcp/context.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace mkernel::transport::tcp {
namespace {

Status control(int epoll, int operation, int fd, Watch& watcher) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.ptr = &watcher;
  if (::epoll_ctl(epoll, operation, fd, &event) == 0) return {};
  return {StatusCode::kResourceExhausted, std::string("epoll_ctl: ") + std::strerror(errno)};
}

}  // namespace

void Context::wake(Served& connection) {
  ready.push(connection);
  kick_once();
}

void Context::forget(Served& connection) {
  ready.remove(connection);
  in_turn.remove(connection);
}

void Context::kick_once() {
  if (kicked) return;
  kicked = true;
  const std::uint64_t one = 1;  // edge-triggered: nobody needs to read it back, and it never gets to 2^64
  [[maybe_unused]] const ssize_t written = ::write(kick.get(), &one, sizeof(one));
}

Status Context::watch(int fd, Watch& watcher) {
  return control(epoll.get(), EPOLL_CTL_ADD, fd, watcher);
}

Status Context::rewatch(int fd, Watch& watcher) {
  return control(epoll.get(), EPOLL_CTL_MOD, fd, watcher);
}

}  // namespace mkernel::transport::tcp
