// The listening end: accepts connections, has each prove whose it is, and hands it to its link. Whoever dials
// is a stranger until then, and may cost no more than a bounded number of sockets for a bounded time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "daemon/transport/tcp/context.h"
#include "daemon/transport/tcp/message.h"
#include "daemon/transport/tcp/socket.h"
#include "proto/abi/status.h"
#include "proto/ipc/fd.h"

namespace mkernel::transport::tcp {

class Peer;

/// Connections that have not proven themselves: in all, and of one address. One more, and the one that has
/// waited longest goes, before any that named a peer which could be dialling.
inline constexpr std::size_t kMaxIncoming = 256;
inline constexpr std::size_t kMaxIncomingPerSource = 64;
/// What a connection has for its Hello, and then for its Proof.
inline constexpr std::chrono::milliseconds kHelloPatience{500};
inline constexpr std::chrono::milliseconds kProofPatience{1000};

/// Knows the peers.
class PeerDirectory {
 public:
  virtual ~PeerDirectory() = default;
  /// The peer that the Hello's identity names; null when there is none.
  virtual Peer* find_peer(std::uint64_t boot_id, std::string_view node) = 0;
};

/// One thread.
class Acceptor final : public Watch {
 public:
  Acceptor(Context& context, PeerDirectory& peers, ipc::UniqueFd listener);
  ~Acceptor() override;

  Status start();
  void close();

  /// The listener is ready.
  void on_events(std::uint32_t) override { waiting_ = true; }
  /// Accepts some of those that wait, and forgets connections whose handshake is over; to be called after a
  /// round of events. Returns the number of things done.
  std::size_t poll();
  /// More wait: poll() wants to be called again, no event will say so.
  bool has_work() const { return waiting_; }

  Clock::time_point deadline() const;
  /// Drops connections that were silent for too long.
  void expire(Clock::time_point now);

 private:
  class Incoming;

  bool accept_one();
  void accept_failed(int error);
  void make_room(const SocketAddress& source);
  void serve(Incoming& incoming);
  bool read_hello(Incoming& incoming);
  void answer(Incoming& incoming);
  Peer* caller(const Hello& hello) const;
  void end(Incoming& incoming);

  Context& context_;
  PeerDirectory& peers_;
  ipc::UniqueFd listener_;
  bool waiting_ = false;                     ///< accept() may have more
  Clock::time_point accept_again_ = kNever;  ///< the process had no fd left
  std::vector<std::unique_ptr<Incoming>>
      incoming_;          ///< in order of arrival; those that are over until poll()
  std::size_t open_ = 0;  ///< of them, not over
};

}  // namespace mkernel::transport::tcp
