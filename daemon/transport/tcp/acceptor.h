// The listening end: accepts connections, reads the Hello of each, answers it, hands the connection to its
// link.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "daemon/transport/tcp/context.h"
#include "daemon/transport/tcp/wire.h"
#include "proto/abi/status.h"
#include "proto/ipc/fd.h"

namespace mkernel::transport::tcp {

class Peer;

/// Knows the peers.
class PeerDirectory {
 public:
  virtual ~PeerDirectory() = default;
  /// The peer that the Hello's identity names; null when there is none.
  virtual Peer* find_peer(std::uint64_t boot_id, std::string_view node) = 0;
};

class Acceptor final : public Watch {
 public:
  Acceptor(Context& context, PeerDirectory& peers, ipc::UniqueFd listener);
  ~Acceptor() override;

  Status start();
  void close();

  /// The listener is ready: accepts what is there.
  void on_events(std::uint32_t events) override;
  /// Forgets connections whose handshake is over; to be called after a round of events.
  void sweep();

  Clock::time_point deadline() const;
  /// Drops connections that said no Hello in time.
  void expire(Clock::time_point now);

 private:
  class Incoming;

  void serve(Incoming& incoming);
  Status judge(const Hello& hello, Peer*& peer);

  Context& context_;
  PeerDirectory& peers_;
  ipc::UniqueFd listener_;
  std::vector<std::unique_ptr<Incoming>> incoming_;
};

}  // namespace mkernel::transport::tcp
