// Where a proxy waits when there is nothing to do: doorbells, mailbox and transport in one epoll set.
#pragma once

#include <chrono>
#include <optional>

#include "daemon/base/mailbox.h"
#include "proto/ipc/fd.h"

namespace mkernel::dataplane {

/// Proxy thread only (the constructor: any thread).
class Sleeper {
 public:
  /// `transport_fd` may be -1: the transport wakes nobody. Throws std::runtime_error when the process has no
  /// fd left.
  Sleeper(base::Mailbox& mailbox, int transport_fd);

  /// Doorbells are watched edge-triggered: each ring wakes once and nobody has to read the eventfd.
  Status watch_doorbell(int fd);
  void unwatch_doorbell(int fd);

  /// Waits until something rings, a command is posted, the transport has work or `limit` has passed (nothing:
  /// no limit). May return early.
  void wait(std::optional<std::chrono::nanoseconds> limit);

 private:
  Status watch(int fd, std::uint32_t events);

  base::Mailbox& mailbox_;
  ipc::UniqueFd epoll_;
};

}  // namespace mkernel::dataplane
