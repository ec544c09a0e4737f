#include "client/src/connection.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "client/src/socket_access.h"

namespace mkernel::client {
namespace {

/// Whole milliseconds from now to `deadline`, at least 0: a timeout for poll().
int milliseconds_until(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1 << 30));
}

Status dial_error(const std::string& path, int error) {
  const std::string what = "daemon at " + path + ": " + std::strerror(error);
  switch (error) {
    case ENOENT:
    case ECONNREFUSED: return {StatusCode::kUnavailable, what + " (is mkerneld running on this node?)"};
    case EACCES:
    case EPERM: return {StatusCode::kPermissionDenied, what + " (" + describe_access(path) + ")"};
    case EPROTOTYPE: return {StatusCode::kInvalidArgument, what + " (not a session socket)"};
    default: return {StatusCode::kUnavailable, what};
  }
}

}  // namespace

Result<ipc::UniqueFd> dial(const std::string& path, Deadline deadline) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return Status(StatusCode::kInvalidArgument,
                  "socket path '" + path + "' has " + std::to_string(path.size()) +
                      " bytes, allowed are 1 to " + std::to_string(sizeof(address.sun_path) - 1));
  }
  std::copy(path.begin(), path.end(), address.sun_path);
  ipc::UniqueFd socket =
      ipc::above_standard(ipc::UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
  if (!socket.valid())
    return Status(StatusCode::kResourceExhausted, std::string("socket: ") + std::strerror(errno));
  while (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return dial_error(path, errno);
    // The daemon's queue of new connections is full. Unix sockets have no event for "there is room": look
    // again soon.
    if (Clock::now() >= deadline) {
      return Status(StatusCode::kDeadlineExceeded, "daemon at " + path + " does not accept new sessions");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return socket;
}

Result<std::unique_ptr<Connection>> Connection::open(ipc::UniqueFd socket, std::string daemon, Lost lost) {
  ipc::UniqueFd stop = ipc::above_standard(ipc::UniqueFd(::eventfd(0, EFD_CLOEXEC)));
  if (!stop.valid()) {
    return Status(StatusCode::kResourceExhausted,
                  daemon + ": eventfd: " + std::strerror(errno) + " (limit of open files: ulimit -n)");
  }
  return std::unique_ptr<Connection>(
      new Connection(std::move(socket), std::move(stop), std::move(daemon), std::move(lost)));
}

Connection::Connection(ipc::UniqueFd socket, ipc::UniqueFd stop, std::string daemon, Lost lost)
    : socket_(std::move(socket)),
      stop_(std::move(stop)),
      lost_callback_(std::move(lost)),
      daemon_(std::move(daemon)),
      watcher_([this] { watch(); }) {}

Connection::~Connection() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof(one));
  watcher_.join();
}

void Connection::name_daemon(std::string daemon) {
  const MutexLock lock(mutex_);
  daemon_ = std::move(daemon);
}

std::string Connection::daemon() const {
  const MutexLock lock(mutex_);
  return daemon_;
}

Status Connection::status() const {
  const MutexLock lock(mutex_);
  return lost_;
}

std::uint32_t Connection::next_sequence() {
  // 0 marks events; after 2^32 requests it is skipped.
  std::uint32_t sequence = ++sequence_;
  while (sequence == 0) sequence = ++sequence_;
  return sequence;
}

Status Connection::exchange(std::span<const std::byte> message, std::span<const int> fds, Deadline deadline,
                            ipc::Packet& reply) {
  abi::Header header;
  std::memcpy(&header, message.data(), sizeof(header));
  Waiter waiter;
  waiter.reply = &reply;
  {
    const MutexLock lock(mutex_);
    if (!lost_.ok()) return lost_;
    waiters_[header.sequence] = &waiter;  // before sending: the reply may be faster than this thread
  }
  const Status sent = send(message, fds, deadline);
  // A daemon that reads no more has said why, or its socket is closed: the watcher finds out.
  const bool wait = sent.ok() || sent.code() == StatusCode::kUnavailable;
  const MutexLock lock(mutex_);
  while (wait && !waiter.answered && lost_.ok() && waiter.wake.wait_until(mutex_, deadline)) {
  }
  waiters_.erase(header.sequence);
  if (waiter.answered) return {};
  if (!lost_.ok()) return lost_;
  if (!sent.ok()) return sent;
  return {StatusCode::kDeadlineExceeded,
          daemon_ + " did not answer request " + std::to_string(header.type) + " in time"};
}

Status Connection::send(std::span<const std::byte> message, std::span<const int> fds, Deadline deadline) {
  while (true) {
    const Status sent = ipc::send_packet(socket_.get(), message, fds);
    if (sent.code() == StatusCode::kAborted) {
      return {StatusCode::kResourceExhausted,
              daemon() + ": this user has too many fds in flight (RLIMIT_NOFILE): " + sent.text()};
    }
    if (sent.code() != StatusCode::kResourceExhausted) return sent.with_context(daemon());
    pollfd room{socket_.get(), POLLOUT, 0};
    const int ready = ::poll(&room, 1, milliseconds_until(deadline));
    if (ready == 0) return {StatusCode::kDeadlineExceeded, daemon() + " does not read its session socket"};
  }
}

Status Connection::check_reply(abi::MessageType request, const ipc::Packet& packet, std::size_t bytes) const {
  abi::Header header;
  std::memcpy(&header, packet.data, sizeof(header));
  const unsigned wanted = static_cast<unsigned>(request) + 100;  // every reply is its request + 100
  if (header.type == wanted && packet.bytes == bytes) return {};
  return {StatusCode::kInternal, daemon() + " answered a request " + std::to_string(wanted - 100) +
                                     " with type " + std::to_string(header.type) + " of " +
                                     std::to_string(packet.bytes) + " bytes instead of type " +
                                     std::to_string(wanted) + " of " + std::to_string(bytes)};
}

void Connection::watch() {
  pollfd sources[2] = {{socket_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
  while (true) {
    if (::poll(sources, 2, -1) < 0) continue;  // EINTR is all that can happen to two valid fds
    if (sources[1].revents != 0) return;
    ipc::Packet packet;
    const Status received = ipc::receive_packet(socket_.get(), packet);
    if (received.code() == StatusCode::kNotFound) continue;
    if (!received.ok()) {
      return lose(
          {StatusCode::kUnavailable,
           daemon() + " closed the session socket (it stopped or died); connect again once it is back"});
    }
    const Status delivered = deliver(packet);
    if (!delivered.ok()) return lose(delivered);
  }
}

Status Connection::deliver(ipc::Packet& packet) {
  abi::Header header{};
  if (packet.fds_lost) {
    return {StatusCode::kResourceExhausted,
            "this process has no fd left for what the " + daemon() + " sent (RLIMIT_NOFILE)"};
  }
  if (packet.truncated || packet.fds_truncated || packet.bytes < sizeof(header)) {
    return {StatusCode::kInternal,
            daemon() + " sent a malformed packet of " + std::to_string(packet.bytes) + " bytes"};
  }
  std::memcpy(&header, packet.data, sizeof(header));
  if (header.magic != abi::kMagic)
    return {StatusCode::kInternal, daemon() + " sent a packet that is no message"};
  if (header.version != abi::kVersion) {
    return {StatusCode::kFailedPrecondition, daemon() + " speaks version " + std::to_string(header.version) +
                                                 " of the session protocol, this library version " +
                                                 std::to_string(abi::kVersion) +
                                                 ": install matching versions"};
  }
  if (header.bytes != packet.bytes) {
    return {StatusCode::kInternal, daemon() + " sent a packet of " + std::to_string(packet.bytes) +
                                       " bytes that claims " + std::to_string(header.bytes)};
  }
  if (header.sequence == 0) {
    if (header.type != static_cast<std::uint16_t>(abi::MessageType::kSessionEnded) ||
        packet.bytes != sizeof(abi::SessionEnded)) {
      return {StatusCode::kInternal, daemon() + " sent an unknown event " + std::to_string(header.type)};
    }
    abi::SessionEnded ended;
    std::memcpy(&ended, packet.data, sizeof(ended));
    const Status why = ipc::from_reply(ended.status);
    if (why.ok()) return {StatusCode::kCancelled, daemon() + " ended the session"};
    return why.with_context(daemon() + " ended the session");
  }
  const MutexLock lock(mutex_);
  const auto found = waiters_.find(header.sequence);
  if (found == waiters_.end()) return {};  // its request gave up; the packet's fds close with it
  *found->second->reply = std::move(packet);
  found->second->answered = true;
  found->second->wake.notify_one();
  return {};
}

void Connection::lose(const Status& why) {
  lost_callback_(why);
  const MutexLock lock(mutex_);
  lost_ = why;
  for (const auto& [sequence, waiter] : waiters_) waiter->wake.notify_one();
}

}  // namespace mkernel::client
