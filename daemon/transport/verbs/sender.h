// All that this node sends to one peer: its links, the channels on them, which routes they take, and when the
// peer is given up.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/transport/verbs/send_link.h"

namespace mkernel::transport::verbs {

/// Proxy thread. A link that breaks is opened again at once, on the best route there is: the receiver fences
/// the old one, says how many puts of each channel it holds, and the puts behind those are sent again.
class Sender {
 public:
  Sender(Context& context, PeerId peer, const PeerAddress& remote, Time now);

  Status add(ChannelId channel, ChannelKey key);
  /// Nothing is read from its memory afterwards: with puts in flight the link is broken for it.
  void remove(Outbound& channel);
  /// No further put of it is posted. What was posted completes.
  void quiesce(Outbound& channel);
  Outbound* find(ChannelKey key);

  /// A checked message of the receiver's. Returns why the peer is lost, or OK.
  Status receive(std::span<const std::byte> bytes, Time now);
  /// Completions, then puts, then what is due. Returns events; `lost` becomes why the peer is lost.
  std::size_t poll(Time now, Status& lost);
  /// Something that was being registered is there, or has failed.
  void registered();
  /// Puts that submit() has queued leave.
  void flow(Time now);
  /// The path of this node changed its state or its address.
  void path_changed(const Path& path, Time now);
  /// A queue pair of this node is in error.
  void queue_broken(std::uint32_t qpn, const Status& why, Time now);
  /// Asks for notifications; false when completions may have come meanwhile.
  bool arm();
  Time deadline(Time now) const;
  bool holds(const memory::Region& region) const;
  void close();

  bool connected() const { return connected_; }

 private:
  /// One reliable connection to the peer; channels are spread over them.
  struct Connection {
    std::unique_ptr<SendLink> link;
    std::optional<Time> broken_since;  ///< until puts have gone over it again, or it was up for long
    Time up_since{};
    Status last;  ///< why it broke
  };

  SendLink& link_of(ChannelKey key) { return *connections_[key % connections_.size()].link; }
  Connection* connection_of(const Message& head);
  bool is_probe(const Connection& connection) const { return &connection == &probe_; }

  void open(Connection& connection, Route route, Time now);
  void broke(Connection& connection, const Status& why, Time now);
  void write_refused(Connection& connection, Outbound* culprit, const Status& why, Time now);
  void came_up(Connection& connection, Time now);
  void probed(Time now);
  std::size_t poll(Connection& connection, Time now);
  std::size_t open_what_is_due(Time now);
  bool was_stable(const Connection& connection, Time now) const;
  void note_that_it_works(Connection& connection);
  Status lost(Time now) const;

  Status on_opened(Connection& connection, const Opened& opened, Time now);
  Status on_attached(SendLink& link, const Attached& attached);
  Status on_resolved(SendLink& link, std::span<const std::byte> bytes);
  void on_revoke(SendLink& link, const RegionMessage& revoke);
  void on_stop(SendLink& link, const ChannelMessage& stop);
  void on_write_refused(Connection& connection, const Refusal& refusal, Time now);

  Context& context_;
  const std::shared_ptr<PeerLoad> load_ = std::make_shared<PeerLoad>();
  const PeerId peer_;
  const Identity remote_;
  rdma::Routes routes_;
  std::vector<Connection> connections_;
  Connection probe_;  ///< tries better routes; carries no channel
  std::unordered_map<ChannelKey, std::unique_ptr<Outbound>> channels_;
  bool connected_ = false;
  bool whole_ = false;  ///< every link was up, and none has broken or moved since: what the sink knows
};

}  // namespace mkernel::transport::verbs
