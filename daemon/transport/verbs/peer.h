// One life of a peer node: what this node sends to it, and what it receives from it.
#pragma once

#include "daemon/transport/verbs/receiver.h"
#include "daemon/transport/verbs/sender.h"

namespace mkernel::transport::verbs {

/// Proxy thread.
struct Peer final : rdma::PeerEntry {
  Peer(Context& context_, PeerId peer, const PeerAddress& remote, Time now)
      : rdma::PeerEntry(peer, remote),
        context(context_),
        sender(context_, peer, remote, now),
        receiver(context_, peer, remote.identity) {}

  Result<Outbound*> add_outbound(ChannelId channel, ChannelKey key) { return sender.add(channel, key); }
  Result<Inbound*> add_inbound(ChannelId channel, ChannelKey key) { return receiver.add(channel, key); }
  void remove(Outbound& channel) { sender.remove(channel); }
  void remove(Inbound& channel) { receiver.remove(channel); }
  /// The channel has puts to send.
  void offer(Outbound& channel) { channel.connection.offer(channel); }
  void fail(Outbound& channel, const Status& why) { fail_channel(context, channel, why); }

  /// A checked message. An error is for good, as poll()'s.
  Status receive(std::span<const std::byte> message, Time now) {
    return from_sender(read_as<Message>(message).type) ? receiver.receive(message)
                                                       : sender.receive(message, now);
  }
  /// `lost` becomes why the peer is lost.
  std::size_t poll(Time now, Status& lost) { return sender.poll(now, lost) + receiver.poll(); }
  void flow(Time now) { sender.flow(now); }
  void registered() {
    sender.registered();
    receiver.registered();
  }
  bool arm() { return sender.arm(); }
  bool idle() const { return sender.idle(); }
  Time deadline(Time now) const { return sender.deadline(now); }
  void close() {
    sender.close();
    receiver.close();
  }

  void retire(const memory::Region& region) { receiver.retire(region); }
  bool holds(const memory::Region& region) const { return sender.holds(region) || receiver.holds(region); }

  Context& context;
  Sender sender;
  Receiver receiver;
};

}  // namespace mkernel::transport::verbs
