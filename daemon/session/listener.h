// The Unix SOCK_SEQPACKET socket that clients connect to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/base/socket_file.h"
#include "proto/abi/status.h"
#include "proto/ipc/fd.h"

namespace mkernel::session {

struct ListenerOptions {
  std::string path;
  std::uint32_t mode = 0660;
  std::string group;  ///< empty: the daemon's own
};

/// Who is at the other end of a session socket.
struct PeerIdentity {
  std::int64_t pid = 0;  ///< 0 when the client lives in a pid namespace that this one cannot see
  std::uint32_t uid = 0;
  std::uint32_t gid = 0;
  std::vector<std::uint32_t>
      gids;             ///< its supplementary groups, and `gid`; those that the daemon can tell apart
  ipc::UniqueFd pidfd;  ///< readable when the process ends; invalid where the kernel offers none
};

/// The fd and file of a listening socket; the file is removed with it, unless it is another one's by then.
class Listener {
 public:
  Listener() = default;
  Listener(ipc::UniqueFd fd, base::SocketFile file) : fd_(std::move(fd)), file_(std::move(file)) {}
  Listener(Listener&&) = default;
  Listener& operator=(Listener&&) = default;
  ~Listener() { close(); }

  int fd() const { return fd_.get(); }
  const base::SocketFile& file() const { return file_; }
  void close();
  /// Removes the file and leaves the socket to the caller: with it die connections that nobody has accepted,
  /// and what their clients have sent.
  ipc::UniqueFd release();

 private:
  ipc::UniqueFd fd_;
  base::SocketFile file_;
};

/// Binds and listens, non-blocking. Any thread; may take as long as the name service wants, which knows the
/// group. A socket file that nobody answers on is a leftover and is removed. Errors: kAlreadyExists when
/// someone answers (the text says which process) or when the file is no socket; kNotFound for an unknown
/// group; kPermissionDenied and the like with the system's reason.
Result<Listener> open_listener(const ListenerOptions& options);

/// Accepts one connection, non-blocking. Errors: kNotFound when none waits, kResourceExhausted when this
/// process has no fd left for it.
Result<ipc::UniqueFd> accept_client(int listener);

/// By SO_PEERCRED, as of the moment of connect(). kPermissionDenied for a user whom the daemon's user
/// namespace does not map: all of these have one uid here.
Result<PeerIdentity> identify(int socket);

}  // namespace mkernel::session
