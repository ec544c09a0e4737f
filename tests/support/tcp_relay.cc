#include "tests/support/tcp_relay.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <stdexcept>

namespace mkernel::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxBuffered = 4 * 1024 * 1024;

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

void reset_on_close(int fd) {
  const linger now{1, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
}

}  // namespace

/// One direction of a connection: bytes on their way, each chunk with the time at which it is due.
class TcpRelay::Pipe {
 public:
  bool wants_input() const { return !ended_ && buffered_ < kMaxBuffered; }
  bool wants_output(Clock::time_point now) const { return !chunks_.empty() && chunks_.front().due <= now; }
  bool finished() const { return ended_ && chunks_.empty(); }
  Clock::time_point due() const { return chunks_.empty() ? Clock::time_point::max() : chunks_.front().due; }

  /// Reads what is there. False when the connection is broken.
  bool take(int from, std::chrono::microseconds latency, double bytes_per_us) {
    std::array<char, 65536> buffer;
    const ssize_t got = ::recv(from, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) {
      ended_ = true;
      return true;
    }
    const auto bytes = static_cast<std::size_t>(got);
    const double transfer = bytes_per_us > 0 ? static_cast<double>(bytes) / bytes_per_us : 0;
    line_free_ = std::max(line_free_, Clock::now()) +
                 std::chrono::nanoseconds(static_cast<std::int64_t>(transfer * 1000));
    chunks_.push_back({line_free_ + latency, {buffer.data(), buffer.data() + bytes}, 0});
    buffered_ += bytes;
    return true;
  }

  /// Writes what is due, at most `limit` bytes. Returns the bytes written, -1 when the connection is broken.
  ssize_t give(int to, std::uint64_t limit) {
    Chunk& chunk = chunks_.front();
    const std::size_t bytes = std::min<std::uint64_t>(chunk.bytes.size() - chunk.at, limit);
    const ssize_t sent = ::send(to, chunk.bytes.data() + chunk.at, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN || errno == EINTR ? 0 : -1;
    chunk.at += static_cast<std::size_t>(sent);
    buffered_ -= static_cast<std::size_t>(sent);
    if (chunk.at == chunk.bytes.size()) chunks_.pop_front();
    return sent;
  }

 private:
  struct Chunk {
    Clock::time_point due;
    std::vector<char> bytes;
    std::size_t at;
  };
  std::deque<Chunk> chunks_;
  std::size_t buffered_ = 0;
  Clock::time_point line_free_{};
  bool ended_ = false;
};

struct TcpRelay::Connection {
  ipc::UniqueFd end[2];  ///< who dialled, the target: bytes of direction d go from end[d] to end[1 - d]
  Pipe pipe[2];
  short events[2] = {0, 0};  ///< what poll() said
};

TcpRelay::TcpRelay(std::uint16_t target_port) : target_port_(target_port) {
  listener_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sockaddr_in address = loopback(0);
  socklen_t bytes = sizeof(address);
  auto* raw = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener_.get(), raw, bytes) != 0 || ::listen(listener_.get(), 64) != 0 ||
      ::getsockname(listener_.get(), raw, &bytes) != 0) {
    throw std::runtime_error("relay: no port on loopback");
  }
  port_ = ntohs(address.sin_port);
  wake_ = ipc::create_event().value();
  thread_ = std::thread([this] { run(); });
}

TcpRelay::~TcpRelay() {
  stop_.store(true);
  cut();
  thread_.join();
}

std::string TcpRelay::endpoint() const {
  return "127.0.0.1:" + std::to_string(port_);
}

void TcpRelay::shape(Direction direction, std::chrono::microseconds latency, double bandwidth_gbytes) {
  latency_us_[direction].store(latency.count());
  bytes_per_us_[direction].store(bandwidth_gbytes * 1000);
}

void TcpRelay::cut() {
  down_.store(true);
  reset_.store(true);
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
}

void TcpRelay::heal() {
  down_.store(false);
}

void TcpRelay::cut_after(Direction direction, std::uint64_t bytes) {
  cut_at_[direction].store(forwarded_[direction].load() + bytes);
}

void TcpRelay::reset_all() {
  for (const auto& connection : connections_) {
    for (const auto& end : connection->end) reset_on_close(end.get());
    ++resets_;
  }
  connections_.clear();
}

void TcpRelay::accept_all() {
  for (;;) {
    ipc::UniqueFd dialled(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!dialled.valid()) return;
    if (down_.load()) {
      reset_on_close(dialled.get());
      continue;
    }
    ipc::UniqueFd target(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in address = loopback(target_port_);
    if (::connect(target.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) continue;
    const int on = 1;
    for (const int fd : {dialled.get(), target.get()}) {
      ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    }
    connections_.push_back(std::make_unique<Connection>());
    connections_.back()->end[0] = std::move(dialled);
    connections_.back()->end[1] = std::move(target);
  }
}

/// False when the connection is over.
bool TcpRelay::serve(Connection& connection) {
  for (int d = 0; d < 2; ++d) {
    Pipe& pipe = connection.pipe[d];
    if ((connection.events[d] & (POLLIN | POLLHUP | POLLERR)) != 0 && pipe.wants_input() &&
        !pipe.take(connection.end[d].get(), std::chrono::microseconds(latency_us_[d].load()),
                   bytes_per_us_[d].load())) {
      return false;
    }
    while (pipe.wants_output(Clock::now())) {
      const std::uint64_t limit = std::max<std::uint64_t>(1, cut_at_[d].load() - forwarded_[d].load());
      const ssize_t sent = pipe.give(connection.end[1 - d].get(), limit);
      if (sent < 0) return false;
      if (sent == 0) break;
      if ((forwarded_[d] += static_cast<std::uint64_t>(sent)) >= cut_at_[d].load()) {
        cut_at_[d].store(UINT64_MAX);
        reset_.store(true);
        return true;
      }
    }
    if (pipe.finished()) return false;
  }
  return true;
}

int TcpRelay::wait_milliseconds(Clock::time_point now) const {
  auto nearest = Clock::time_point::max();
  for (const auto& connection : connections_) {
    for (const auto& pipe : connection->pipe) {
      if (pipe.due() > now) nearest = std::min(nearest, pipe.due());
    }
  }
  if (nearest == Clock::time_point::max()) return -1;
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(nearest - now).count());
}

void TcpRelay::run() {
  std::vector<pollfd> wanted;
  while (!stop_.load()) {
    // One reading of the clock: a chunk that came due between two would be neither written nor waited for.
    const auto now = Clock::now();
    wanted.assign({{listener_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}});
    for (const auto& connection : connections_) {
      for (int d = 0; d < 2; ++d) {
        const bool in = connection->pipe[d].wants_input();
        const bool out = connection->pipe[1 - d].wants_output(now);
        wanted.push_back(
            {connection->end[d].get(), static_cast<short>((in ? POLLIN : 0) | (out ? POLLOUT : 0)), 0});
      }
    }
    ::poll(wanted.data(), wanted.size(), wait_milliseconds(now));
    for (std::size_t i = 0; i < connections_.size(); ++i) {
      for (int d = 0; d < 2; ++d) connections_[i]->events[d] = wanted[2 + 2 * i + d].revents;
    }
    std::uint64_t count = 0;
    if ((wanted[1].revents & POLLIN) != 0) [[maybe_unused]]
      const ssize_t got = ::read(wake_.get(), &count, 8);
    if (reset_.exchange(false)) reset_all();
    std::erase_if(connections_, [&](const auto& connection) { return !serve(*connection); });
    if (reset_.exchange(false)) reset_all();
    accept_all();
  }
}

}  // namespace mkernel::test
