#include "daemon/session/listener.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <vector>

#include "daemon/base/id_map.h"
#include "daemon/base/new_file_mode.h"
#include "daemon/base/printable.h"

namespace mkernel::session {
namespace {

#ifdef SO_PEERPIDFD
constexpr int kSoPeerPidfd = SO_PEERPIDFD;
#else
constexpr int kSoPeerPidfd = 77;  // Linux 6.5; older headers do not name it, older kernels refuse it
#endif
#ifdef SO_PEERGROUPS
constexpr int kSoPeerGroups = SO_PEERGROUPS;
#else
constexpr int kSoPeerGroups = 59;
#endif

Status system_error(const std::string& what) {
  const int error = errno;
  const StatusCode code = error == EACCES || error == EPERM ? StatusCode::kPermissionDenied
                          : error == ENOENT                 ? StatusCode::kNotFound
                                                            : StatusCode::kUnavailable;
  return {code, what + ": " + std::strerror(error)};
}

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return Status(StatusCode::kInvalidArgument,
                  "session socket path \"" + path + "\" has " + std::to_string(path.size()) +
                      " bytes, allowed are 1 to " + std::to_string(sizeof(address.sun_path) - 1));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

const sockaddr* generic(const sockaddr_un& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

ipc::UniqueFd new_socket() {
  return ipc::UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

std::string describe_process(std::int64_t pid) {
  std::string name;
  std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/comm"), name);
  return "process " + std::to_string(pid) + (name.empty() ? "" : " (" + base::one_line(name) + ")");
}

/// OK when nothing stands at `path` any more.
Status clear_path(const std::string& path, const sockaddr_un& address) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? Status() : system_error("session socket " + path);
  }
  if (!S_ISSOCK(info.st_mode)) {
    return {StatusCode::kAlreadyExists, path + " exists and is not a socket"};
  }
  const ipc::UniqueFd probe = new_socket();
  if (!probe.valid()) return system_error("socket");
  if (::connect(probe.get(), generic(address), sizeof(address)) == 0) {
    ucred owner{};
    socklen_t size = sizeof(owner);
    const bool known = ::getsockopt(probe.get(), SOL_SOCKET, SO_PEERCRED, &owner, &size) == 0;
    return {StatusCode::kAlreadyExists,
            "session socket " + path + " is in use by " +
                (known ? describe_process(owner.pid) : std::string("another process")) +
                ": stop it, or give this daemon another node.socket"};
  }
  if (errno != ECONNREFUSED) return system_error("session socket " + path + " exists and cannot be probed");
  if (::unlink(path.c_str()) != 0) return system_error("removing the leftover socket " + path);
  return {};
}

Status give_to_group(const std::string& path, const std::string& name) {
  if (name.empty()) return {};
  std::vector<char> storage(16384);
  group entry{};
  group* found = nullptr;
  const int error = ::getgrnam_r(name.c_str(), &entry, storage.data(), storage.size(), &found);
  if (found == nullptr) {
    return {StatusCode::kNotFound, "node.socket_group \"" + name + "\" is no group of this machine" +
                                       (error == 0 ? "" : std::string(": ") + std::strerror(error))};
  }
  // The file itself, whatever stands there now: no link is followed.
  if (::fchownat(AT_FDCWD, path.c_str(), static_cast<uid_t>(-1), found->gr_gid, AT_SYMLINK_NOFOLLOW) != 0) {
    return system_error("giving " + path + " to group " + name);
  }
  return {};
}

/// By the kernel's word as of connect(), which asks no user database.
std::vector<std::uint32_t> supplementary_groups(int socket) {
  std::vector<std::uint32_t> gids(64);
  for (;;) {
    auto bytes = static_cast<socklen_t>(gids.size() * sizeof(gids[0]));
    const int found = ::getsockopt(socket, SOL_SOCKET, kSoPeerGroups, gids.data(), &bytes);
    const bool more = found != 0 && errno == ERANGE && bytes > gids.size() * sizeof(gids[0]);
    gids.resize(found == 0 || more ? bytes / sizeof(gids[0]) : 0);
    if (!more) return gids;
  }
}

}  // namespace

void Listener::close() {
  release().reset();
}

ipc::UniqueFd Listener::release() {
  if (fd_.valid()) file_.remove();
  return std::move(fd_);
}

Result<Listener> open_listener(const ListenerOptions& options) {
  auto address = address_of(options.path);
  if (!address.ok()) return address.status();
  MK_RETURN_IF_ERROR(clear_path(options.path, *address));

  ipc::UniqueFd socket = new_socket();
  if (!socket.valid()) return system_error("socket");
  // The mode comes with the file, and nobody can connect before listen(): there is no moment in which more
  // may connect than mode and group say, and no path that is looked up again.
  {
    const base::NewFileMode mode(options.mode);
    if (::bind(socket.get(), generic(*address), sizeof(*address)) != 0) {
      return system_error("session socket " + options.path);
    }
  }
  Listener listener(std::move(socket), base::SocketFile(options.path));
  MK_RETURN_IF_ERROR(give_to_group(options.path, options.group));
  if (::listen(listener.fd(), SOMAXCONN) != 0) return system_error("listen on " + options.path);
  return listener;
}

Result<ipc::UniqueFd> accept_client(int listener) {
  for (;;) {
    ipc::UniqueFd client(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (client.valid()) return client;
    if (errno == EINTR || errno == ECONNABORTED) continue;
    const bool none = errno == EAGAIN || errno == EWOULDBLOCK;
    return Status(none ? StatusCode::kNotFound : StatusCode::kResourceExhausted,
                  std::string("accept on the session socket: ") + std::strerror(errno));
  }
}

Result<PeerIdentity> identify(int socket) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return system_error("SO_PEERCRED of a session");
  }
  MK_RETURN_IF_ERROR(
      base::check_known_user(credentials.uid).with_context("pid " + std::to_string(credentials.pid)));
  PeerIdentity identity;
  identity.pid = credentials.pid;
  identity.uid = credentials.uid;
  identity.gid = credentials.gid;
  identity.gids = supplementary_groups(socket);
  identity.gids.push_back(credentials.gid);
  // Of a group that the daemon's user namespace does not map, nobody knows which it is: it gives no rights.
  const base::IdMap& groups = base::IdMap::of_this_process(base::IdKind::kGroup);
  std::erase_if(identity.gids, [&](std::uint32_t gid) { return !groups.known(gid); });
  int pidfd = -1;
  size = sizeof(pidfd);
  if (::getsockopt(socket, SOL_SOCKET, kSoPeerPidfd, &pidfd, &size) != 0) {
    pidfd = credentials.pid > 0 ? static_cast<int>(::syscall(SYS_pidfd_open, credentials.pid, 0)) : -1;
  }
  identity.pidfd = ipc::UniqueFd(pidfd);
  return identity;
}

}  // namespace mkernel::session
