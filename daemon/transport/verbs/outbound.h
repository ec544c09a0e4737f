// The sending end of a channel. Plain data of the connection that carries it.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/transport/rdma/registrations.h"
#include "daemon/transport/transport.h"
#include "daemon/transport/verbs/message.h"
#include "daemon/transport/window/send_window.h"

namespace mkernel::transport::verbs {

class Connection;

/// A region of the peer, as it may be written to over the current connection.
struct RemoteRegion {
  enum class State { kUnknown, kAsked, kKnown };
  State state = State::kUnknown;
  std::uint32_t grant = 0;
  std::uint64_t bytes = 0;
  std::uint64_t chunk_bytes = 0;
  std::vector<RemoteChunk> chunks;
};

/// The peer took back a region; it waits to hear that the puts up to `last` are over.
struct Revocation {
  std::uint32_t region = 0;
  std::uint32_t grant = 0;
  std::uint64_t last = 0;
};

struct Outbound {
  Outbound(ChannelId id_, ChannelKey key_, Connection& connection_, std::uint32_t window_,
           std::shared_ptr<PeerLoad> load)
      : id(id_), key(key_), connection(connection_), window(window_, std::move(load)) {}

  const ChannelId id;
  const ChannelKey key;
  Connection& connection;
  SendWindow window;
  bool failed = false;   ///< reported; puts of it are taken and forgotten
  bool closing = false;  ///< it is about to be closed at this end: no further put begins
  /// Connections in a row that broke because the peer's device refused one of its writes.
  std::uint32_t refused = 0;

  // Of the current connection.
  bool attached = false;   ///< the receiver has said how many puts it holds
  bool waiting = false;    ///< for the answer about a region, or for its source to be registered
  bool stopped = false;    ///< the receiver has asked for no further puts
  bool queued = false;     ///< in the connection's list of those that have something to send
  std::uint64_t word = 0;  ///< its arrival count at the peer
  std::uint32_t word_rkey = 0;
  std::vector<RemoteRegion> regions;  ///< by index
  std::vector<Revocation> revocations;

  rdma::LastSource last_source;

  /// A put of it may begin now.
  bool may_send() const { return attached && !waiting && !failed && !closing && !stopped; }
  /// True when something of it may be read from or written to on the current connection.
  bool in_flight() const { return attached && window.sent() > window.acknowledged(); }
  void disconnect() {
    attached = waiting = stopped = queued = false;
    regions.clear();
    revocations.clear();
    last_source = {};
  }
};

}  // namespace mkernel::transport::verbs
