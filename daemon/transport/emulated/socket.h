// The Unix sockets of the emulated fabric: addresses, listening, dialling, and one set of things to wait for.
#pragma once

#include <sys/epoll.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "daemon/base/owner_workers.h"
#include "daemon/transport/emulated/emulated.h"
#include "proto/ipc/fd.h"

namespace mkernel::transport::emulated {

/// The name peers dial: a path in runtime_dir, or "@name" for an abstract one. Unique per node, boot and
/// rail.
std::string address_of(const EmulatedOptions& options);

/// A listening, non-blocking socket. A path left behind by a dead process is taken over. Errors as
/// make_emulated().
Result<ipc::UniqueFd> listen_at(const std::string& address);

/// A non-blocking socket connected to `address`. Errors: kUnavailable when nobody listens there (yet);
/// kPermissionDenied when a process of another user (other than root) does: it would be sent our memfds.
Result<ipc::UniqueFd> dial(const std::string& address);

/// The next waiting connection, non-blocking; an invalid fd when there is none. A process of another user
/// (other than root) is turned away: whoever sends us memfds makes us read them. What it has sent already is
/// closed on a thread of `strangers` for that user, as that may take as long as he likes.
ipc::UniqueFd accept_from(int listener, base::OwnerWorkers& strangers);

/// Closes a listening socket. Connections that wait there are turned away as above.
void stop_listening(ipc::UniqueFd listener, base::OwnerWorkers& strangers);

/// An epoll set with one timer in it. One thread.
class Wakeup {
 public:
  static Result<Wakeup> create();

  int fd() const { return epoll_.get(); }
  void add(int fd, std::uint64_t token);
  void remove(int fd);
  /// Whether to wake up when `fd` can be written to as well.
  void want_write(int fd, std::uint64_t token, bool wanted);

  /// Wakes up at `when` at the latest, or not by timer. Cheap when nothing changed.
  void arm(std::optional<std::chrono::steady_clock::time_point> when);
  /// Events that are there now, the timer's own left out.
  std::span<const epoll_event> poll();

 private:
  static constexpr std::uint64_t kTimerToken = ~std::uint64_t{0};
  static constexpr int kEvents = 64;

  ipc::UniqueFd epoll_;
  ipc::UniqueFd timer_;
  std::optional<std::chrono::steady_clock::time_point> armed_;
  epoll_event events_[kEvents];
};

}  // namespace mkernel::transport::emulated
