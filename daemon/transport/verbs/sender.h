// All that this node sends to one peer: its connections, the channels on them, which routes they take, and
// when the peer is given up.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/transport/verbs/connection.h"

namespace mkernel::transport::verbs {

/// Proxy thread. A connection that breaks is opened again at once, on the best route there is: the receiver
/// fences the old one, says how many puts of each channel it holds, and the puts behind those are sent again.
class Sender {
 public:
  Sender(Context& context, PeerId peer, const PeerAddress& remote, Time now);

  Result<Outbound*> add(ChannelId channel, ChannelKey key);
  /// Nothing is read from its memory afterwards: with puts in flight the connection is broken for it.
  void remove(Outbound& channel);
  /// No further put of it is posted. What was posted completes.
  void quiesce(Outbound& channel);

  /// A checked message of the receiver's. Returns why the peer is lost, or OK.
  Status receive(std::span<const std::byte> bytes, Time now);
  /// Completions, then puts, then what is due. Returns events; `lost` becomes why the peer is lost.
  std::size_t poll(Time now, Status& lost);
  /// Something that was being registered is there, or has failed.
  void registered();
  /// Puts that submit() has queued leave.
  void flow(Time now);
  /// The path of this node at that position changed its state or its address.
  void path_changed(std::uint32_t local, Time now);
  /// A queue pair of this node is in error.
  void queue_broken(std::uint32_t qpn, const Status& why, Time now);
  /// Asks for notifications; false when completions may have come meanwhile.
  bool arm();
  /// Nothing is under way or can be posted; what is left to do has its time.
  bool idle() const;
  Time deadline(Time now) const;
  bool holds(const memory::Region& region) const;
  void close();

 private:
  /// One reliable connection after the other to the peer; channels are spread over the slots.
  struct Slot {
    std::unique_ptr<Connection> connection;
    std::optional<Time> broken_since;  ///< until puts have gone over it again, or it was up for long
    Time up_since{};
    Status last;  ///< why it broke
  };

  Connection& connection_of(ChannelKey key) { return *slots_[key % slots_.size()].connection; }
  Outbound* find(ChannelKey key) const { return rdma::find_in(channels_, key); }
  Slot* slot_of(const Message& head);
  bool is_probe(const Slot& slot) const { return &slot == &probe_; }

  void open(Slot& slot, Route route, Time now);
  void broke(Slot& slot, const Status& why, Time now);
  void write_refused(Slot& slot, Outbound* culprit, const Status& why, Time now);
  void came_up(Slot& slot, Time now);
  void probed(Time now);
  std::size_t poll(Slot& slot, Time now);
  std::size_t open_what_is_due(Time now);
  bool was_stable(const Slot& slot, Time now) const;
  void note_that_it_works(Slot& slot);
  Status lost(Time now) const;

  Status on_opened(Slot& slot, const Opened& opened, Time now);
  Status on_held(Connection& connection, const Held& held);
  Status on_resolved(Connection& connection, std::span<const std::byte> bytes);
  void on_revoke(Connection& connection, const RegionMessage& revoke);
  void on_stop(Connection& connection, const ChannelMessage& stop);
  void on_write_refused(Slot& slot, const Refusal& refusal, Time now);

  Context& context_;
  const std::shared_ptr<PeerLoad> load_ = std::make_shared<PeerLoad>();
  const PeerId peer_;
  const Identity remote_;
  rdma::Routes routes_;
  std::vector<Slot> slots_;
  Slot probe_;  ///< tries better routes; carries no channel
  std::unordered_map<ChannelKey, std::unique_ptr<Outbound>> channels_;
  bool connected_ = false;
  bool just_lost_ = false;  ///< a connection was, and no poll has looked for a route since
  bool whole_ = false;  ///< every connection was up, and none has broken or moved since: what the sink knows
};

}  // namespace mkernel::transport::verbs
