// What every part of one TCP transport shares: its options, its epoll set, its events, its list of
// connections that have something to do.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "daemon/transport/tcp/events.h"
#include "daemon/transport/tcp/fifo.h"
#include "daemon/transport/tcp/gpu_access.h"
#include "daemon/transport/tcp/tcp.h"
#include "proto/ipc/fd.h"

namespace mkernel::transport::tcp {

using Clock = std::chrono::steady_clock;

inline constexpr Clock::time_point kNever = Clock::time_point::max();

/// Something with a file descriptor in the epoll set. Watched edge-triggered: an event is told once, so
/// whoever is told keeps the knowledge until a read or write says that there is no more.
class Watch {
 public:
  virtual ~Watch() = default;
  virtual void on_events(std::uint32_t events) = 0;
};

/// A connection as poll() serves it: first everybody receives, then the sink is told, then everybody sends.
class Served : public Watch {
 public:
  /// Both return the number of things done and take the bytes that they moved from `left`, after which they
  /// stop soon; neither blocks.
  virtual std::size_t receive(std::size_t& left) = 0;
  virtual std::size_t send(std::size_t& left) = 0;
  virtual bool has_work() const = 0;

  Hook<Served> ready;
};

/// Counted for people; nothing depends on them.
struct Statistics {
  std::uint64_t connections_lost = 0;
  std::uint64_t handshakes_refused = 0;  ///< by this end
  std::uint64_t strangers_dropped = 0;   ///< connections without a handshake, for want of room
  std::uint64_t puts_discarded = 0;      ///< of unknown or failed channels
  std::uint64_t puts_duplicate = 0;
};

struct Context {
  TcpOptions options;
  std::uint32_t max_put_bytes = 0;
  ipc::UniqueFd epoll;
  ipc::UniqueFd timer;  ///< fires at the nearest deadline of any connection
  ipc::UniqueFd kick;   ///< eventfd: makes `epoll` readable for work that no socket announces
  bool kicked = false;  ///< since the last poll()
  bool deadlines_changed = true;
  Fifo<Served, &Served::ready> ready;
  Fifo<Served, &Served::ready> in_turn;  ///< have received in this poll() and are still to send
  TransportSink* sink = nullptr;
  Events events;
  GpuAccess gpu;
  Statistics statistics;

  /// Has the connection served by the next poll().
  void wake(Served& connection);
  /// The connection goes away, or has nothing left to do.
  void forget(Served& connection);
  /// Makes event_fd() readable until the next poll().
  void kick_once();
  /// Adds `fd` to the epoll set, or tells it who watches now.
  Status watch(int fd, Watch& watcher);
  Status rewatch(int fd, Watch& watcher);
};

}  // namespace mkernel::transport::tcp
