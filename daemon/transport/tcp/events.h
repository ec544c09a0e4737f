// What a transport has to tell its data plane, collected while sockets are served and handed over in one
// place: the sink may then call back into the transport (submit, close a channel) and never meets it half-way
// through a frame.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <vector>

#include "daemon/transport/tcp/channel.h"
#include "daemon/transport/transport.h"

namespace mkernel::transport::tcp {

class Events {
 public:
  void arrived(Inbound& channel) { arrived_.push(channel); }
  void completed(Outbound& channel) { completed_.push(channel); }
  void channel_failed(ChannelId channel, Status why) {
    states_.push_back({State::kChannelFailed, channel, std::move(why)});
  }
  void peer_connected(PeerId peer) { states_.push_back({State::kPeerConnected, peer, {}}); }
  void peer_failed(PeerId peer, Status why) { states_.push_back({State::kPeerFailed, peer, std::move(why)}); }

  void path_changed(PeerId peer, std::string path, Status lost) {
    states_.push_back({State::kPathChanged, peer, std::move(lost), std::move(path)});
  }

  void send_to_peer(PeerId peer, std::vector<std::byte> message) {
    states_.push_back({State::kMessage, peer, {}, {}, std::move(message)});
  }

  bool empty() const { return arrived_.empty() && completed_.empty() && states_.empty(); }

  /// Nothing more is reported about it.
  void forget(Inbound& channel) { arrived_.remove(channel); }
  void forget(Outbound& channel);
  void forget_peer(PeerId peer);

  /// Forgets everything.
  void clear();

  /// Calls the sink for everything collected, also what the sink's own calls add. Returns the number of
  /// calls.
  std::size_t deliver(TransportSink& sink);

 private:
  struct State {
    enum Kind { kPeerConnected, kPeerFailed, kPathChanged, kChannelFailed, kMessage } kind;
    std::uint32_t id;  ///< ChannelId or PeerId
    Status why;
    std::string path = {};
    std::vector<std::byte> message = {};
  };

  Fifo<Inbound, &Inbound::arrived> arrived_;
  Fifo<Outbound, &Outbound::completed> completed_;
  std::deque<State> states_;
};

}  // namespace mkernel::transport::tcp
