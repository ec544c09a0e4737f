// What a transport tells the data plane: puts to place, counts to publish, failures to act on.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/dataplane/groups.h"
#include "daemon/dataplane/session_table.h"

namespace mkernel::dataplane {

/// Proxy thread only: the transport calls it inside submit() and poll(). Publishes counts at once; what needs
/// the tables changed is noted for the rail.
class EventSink final : public transport::TransportSink {
 public:
  struct PeerEvent {
    transport::PeerId peer = 0;
    Status status;          ///< OK: connected, or the path is there again; else it is lost
    std::string path = {};  ///< not empty: this one, and not the peer
  };

  struct PeerMessage {
    transport::PeerId peer = 0;
    std::vector<std::byte> bytes;
  };

  EventSink(ChannelEnds& ends, FailureLog& failures, const transport::Capabilities& transport)
      : ends_(ends),
        failures_(failures),
        host_only_(!transport.gpu_memory),
        transport_publishes_(transport.publishes) {}

  std::vector<PeerEvent> take_peer_events() { return std::exchange(peer_events_, {}); }
  bool has_peer_events() const { return !peer_events_.empty(); }
  std::vector<PeerMessage> take_messages() { return std::exchange(messages_, {}); }
  bool has_messages() const { return !messages_.empty(); }

  Status place(transport::ChannelId channel, std::uint16_t region, std::uint64_t offset, std::uint32_t length,
               transport::Target& target) override;
  void arrived(transport::ChannelId channel, std::uint64_t count) override;
  void completed(transport::ChannelId channel, std::uint64_t count) override;
  void channel_failed(transport::ChannelId channel, const Status& why) override;
  void peer_connected(transport::PeerId peer) override { peer_events_.push_back({peer, {}}); }
  void peer_failed(transport::PeerId peer, const Status& why) override {
    peer_events_.push_back({peer, why});
  }
  void path_changed(transport::PeerId peer, std::string_view path, const Status& lost) override {
    peer_events_.push_back({peer, lost, std::string(path)});
  }
  Status arrival_word(transport::ChannelId channel, transport::ArrivalWord& place) override;
  void send_to_peer(transport::PeerId peer, std::span<const std::byte> message) override {
    messages_.push_back({peer, {message.begin(), message.end()}});
  }

 private:
  ChannelEnds& ends_;
  FailureLog& failures_;
  const bool host_only_;
  const bool transport_publishes_;
  std::vector<PeerEvent> peer_events_;
  std::vector<PeerMessage> messages_;
};

}  // namespace mkernel::dataplane
