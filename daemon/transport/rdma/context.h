// What all parts of one RDMA transport share, and what its peers have in common.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "daemon/transport/rdma/message.h"
#include "daemon/transport/rdma/registrar.h"
#include "daemon/transport/rdma/routes.h"
#include "daemon/transport/rdma/visits.h"
#include "daemon/transport/transport.h"

namespace mkernel::transport::rdma {

/// Proxy thread. `Path`: a port or device of this node, opened.
template <typename OptionsOf, typename Path>
struct Context {
  OptionsOf options;
  TransportSink* sink = nullptr;
  std::unique_ptr<Registrar> registrar;                           ///< stopped before the paths go
  std::vector<std::unique_ptr<Path>> paths;                       ///< as the options list them
  std::vector<std::pair<PeerId, std::vector<std::byte>>> outbox;  ///< sent by poll()

  void say(PeerId peer, std::span<const std::byte> message) {
    outbox.emplace_back(peer, std::vector<std::byte>(message.begin(), message.end()));
  }
  /// Any message of its own size.
  template <typename T>
  requires(!std::is_convertible_v<const T&, std::span<const std::byte>>) void say(PeerId peer,
                                                                                  const T& message) {
    say(peer, bytes_of(message));
  }
};

/// One life of a peer node, as far as the table of peers knows it.
struct PeerEntry : Visited {
  PeerEntry(PeerId id_, const PeerAddress& remote) : id(id_), identity(remote.identity) {}
  const PeerId id;
  const Identity identity;
  bool failed = false;
  bool offered = false;  ///< submit() has puts for it
};

/// Permission to write to one region, at the receiver.
struct Grant {
  std::uint32_t number = 0;
  std::uint32_t index = 0;  ///< the region's index in its group
  const memory::Region* region = nullptr;
  bool revoked = false;  ///< the sender was asked to stop
};

/// The channel of that key in a map of owned ones; null: there is none.
template <typename Channels>
auto* find_in(const Channels& channels, ChannelKey key) {
  const auto found = channels.find(key);
  return found == channels.end() ? nullptr : found->second.get();
}

/// The head of a message about the same connection.
inline Message with_type(Message head, MessageType type) {
  head.type = type;
  head.count = 0;
  return head;
}

/// OK when a message that is meant for boot id `to` and comes from boot id `from` is for this node from the
/// peer, in the lives that both know.
Status check_lives(const Identity& self, const Identity& peer, std::uint64_t to, std::uint64_t from);

}  // namespace mkernel::transport::rdma
