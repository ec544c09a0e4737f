#include "daemon/rpc/control_listener.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <utility>

#include "daemon/base/thread.h"

namespace mkernel::rpc {
namespace {

/// Owner and group.
constexpr mode_t kSocketMode = 0660;
constexpr std::chrono::milliseconds kAcceptPause{100};  ///< when no fd is left

Status socket_error(const std::string& path, const std::string& what) {
  return {StatusCode::kUnavailable, "control socket " + path + ": " + what};
}

Status system_error(const std::string& path, const std::string& what) {
  return socket_error(path, what + ": " + std::strerror(errno));
}

const sockaddr* generic(const sockaddr_un& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

ipc::UniqueFd new_socket() {
  return ipc::UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

/// OK when nothing stands at the path any more.
Status clear_path(const std::string& path, const sockaddr_un& address) {
  struct stat there {};
  if (::lstat(path.c_str(), &there) != 0) {
    return errno == ENOENT ? Status() : socket_error(path, std::strerror(errno));
  }
  if (!S_ISSOCK(there.st_mode)) {
    return {StatusCode::kAlreadyExists, "control socket " + path + ": the file exists and is not a socket"};
  }
  const ipc::UniqueFd probe = new_socket();
  const bool answered = ::connect(probe.get(), generic(address), sizeof(address)) == 0;
  if (answered || errno == EAGAIN) {  // EAGAIN: somebody listens, and has many who wait
    ucred holder{};
    socklen_t size = sizeof(holder);
    ::getsockopt(probe.get(), SOL_SOCKET, SO_PEERCRED, &holder, &size);
    return {StatusCode::kAlreadyExists,
            "control socket " + path + " is taken by " +
                (answered ? "pid " + std::to_string(holder.pid) : std::string("another process"))};
  }
  if (errno != ECONNREFUSED) return system_error(path, "exists and cannot be probed");
  return ::unlink(path.c_str()) == 0 ? Status() : system_error(path, "cannot be removed");
}

}  // namespace

Result<ControlListener::Bound> ControlListener::bind(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return Status(StatusCode::kInvalidArgument, "control socket path of " + std::to_string(path.size()) +
                                                    " bytes: allowed are 1 to " +
                                                    std::to_string(sizeof(address.sun_path) - 1));
  }
  std::memcpy(address.sun_path, path.c_str(), path.size());
  MK_RETURN_IF_ERROR(clear_path(path, address));
  ipc::UniqueFd socket = new_socket();
  if (!socket.valid()) return system_error(path, "socket");
  // The file that bind() makes gets the mode of the socket, so that at no moment others may connect.
  if (::fchmod(socket.get(), kSocketMode) != 0) return system_error(path, "mode");
  if (::bind(socket.get(), generic(address), sizeof(address)) != 0) return system_error(path, "bind");
  base::SocketFile file(path);
  struct stat made {};
  if (::lstat(path.c_str(), &made) != 0) return socket_error(path, std::strerror(errno));
  if (!S_ISSOCK(made.st_mode)) return socket_error(path, "something else has taken its place");
  if ((made.st_mode & 0777) != kSocketMode &&
      ::fchmodat(AT_FDCWD, path.c_str(), kSocketMode, AT_SYMLINK_NOFOLLOW) != 0) {
    return system_error(path, "mode");  // a umask has taken away more
  }
  if (::listen(socket.get(), SOMAXCONN) != 0) return system_error(path, "listen");
  return Bound{std::move(socket), std::move(file)};
}

Result<std::unique_ptr<ControlListener>> ControlListener::start(Bound bound, Accept accept) {
  auto stop = ipc::create_event();
  if (!stop.ok()) return stop.status();
  std::unique_ptr<ControlListener> listener(
      new ControlListener(std::move(bound), std::move(accept), std::move(stop).value()));
  try {
    listener->thread_ = std::thread([self = listener.get()] { self->run(); });
  } catch (const std::system_error& error) {
    return Status(StatusCode::kResourceExhausted,
                  std::string("a thread for the control socket: ") + error.what());
  }
  return listener;
}

ControlListener::ControlListener(Bound bound, Accept accept, ipc::UniqueFd stop)
    : bound_(std::move(bound)), accept_(std::move(accept)), stop_(std::move(stop)) {}

ControlListener::~ControlListener() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(stop_.get(), &one, sizeof(one));
  if (thread_.joinable()) thread_.join();
  bound_.file.remove();
}

void ControlListener::run() {
  base::name_this_thread("mk-control");
  pollfd events[] = {{stop_.get(), POLLIN, 0}, {bound_.fd.get(), POLLIN, 0}};
  for (;;) {
    ::poll(events, 2, -1);
    if (events[0].revents != 0) return;
    ipc::UniqueFd client(::accept4(bound_.fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (client.valid()) {
      accept_(std::move(client));
    } else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
      ::poll(events, 1, static_cast<int>(kAcceptPause.count()));
    }
  }
}

}  // namespace mkernel::rpc
