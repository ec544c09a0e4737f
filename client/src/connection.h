// The session socket: requests from any thread, replies routed back to them by a watcher thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "client/src/home.h"
#include "proto/abi/messages.h"
#include "proto/abi/status.h"
#include "proto/base/mutex.h"
#include "proto/ipc/fd.h"
#include "proto/ipc/packet.h"

namespace mkernel::client {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

/// Connects to the daemon's session socket (non-blocking afterwards). Errors: kUnavailable,
/// kPermissionDenied, kInvalidArgument (path too long), kDeadlineExceeded.
Result<ipc::UniqueFd> dial(const std::string& path, Deadline deadline);

class Connection {
 public:
  /// Called once, on the watcher thread, when the session is over and before any waiting request learns of
  /// it.
  using Lost = std::function<void(const Status& why)>;

  /// Starts the watcher. `daemon` names the other side in errors: "daemon at /run/...". Errors:
  /// kResourceExhausted (no file descriptor). Throws std::system_error when no thread can be started.
  static Result<std::unique_ptr<Connection>> open(ipc::UniqueFd socket, std::string daemon, Lost lost);
  /// Stops and joins the watcher, then closes the socket. No request may be in flight.
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// From now on errors call the other side `daemon`: it has told its name.
  void name_daemon(std::string daemon);

  /// Sends `message` (its header is filled in here) and waits for its reply. Any thread. On OK `reply` holds
  /// the body and `received` (if given) the fds. Errors: what the daemon answered; kDeadlineExceeded; why the
  /// session was lost.
  template <typename Message, typename Reply>
  Status request(abi::MessageType type, Message message, Reply& reply, Deadline deadline,
                 std::span<const int> fds = {}, std::vector<ipc::UniqueFd>* received = nullptr) {
    MK_RETURN_IF_ERROR(home_.check());
    message.header = ipc::header_of<Message>(type, next_sequence());
    ipc::Packet packet;
    MK_RETURN_IF_ERROR(exchange(std::as_bytes(std::span(&message, 1)), fds, deadline, packet));
    MK_RETURN_IF_ERROR(check_reply(type, packet, sizeof(Reply)));
    std::memcpy(&reply, packet.data, sizeof(Reply));
    if (received != nullptr) *received = std::move(packet.fds);
    return ipc::from_reply(reply.status);
  }

  /// OK, or why the session is over.
  Status status() const;

 private:
  Connection(ipc::UniqueFd socket, ipc::UniqueFd stop, std::string daemon, Lost lost);

  /// All of it under mutex_.
  struct Waiter {
    ConditionVariable wake;
    bool answered = false;
    ipc::Packet* reply = nullptr;
  };

  std::uint32_t next_sequence();
  Status exchange(std::span<const std::byte> message, std::span<const int> fds, Deadline deadline,
                  ipc::Packet& reply);
  Status send(std::span<const std::byte> message, std::span<const int> fds, Deadline deadline);
  Status check_reply(abi::MessageType request, const ipc::Packet& packet, std::size_t bytes) const;
  std::string daemon() const MK_EXCLUDES(mutex_);

  void watch();
  /// Hands a packet to the request it answers. An error ends the session.
  Status deliver(ipc::Packet& packet);
  void lose(const Status& why);

  const Home home_;
  const ipc::UniqueFd socket_;
  const ipc::UniqueFd stop_;  ///< eventfd: the watcher must end
  const Lost lost_callback_;
  std::atomic<std::uint32_t> sequence_{0};

  mutable Mutex mutex_;
  std::string daemon_ MK_GUARDED_BY(mutex_);
  Status lost_ MK_GUARDED_BY(mutex_);
  std::map<std::uint32_t, Waiter*> waiters_ MK_GUARDED_BY(mutex_);

  std::thread watcher_;  ///< last: starts when everything above is there
};

}  // namespace mkernel::client
