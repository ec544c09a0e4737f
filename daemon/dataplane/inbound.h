// What a transport tells the data plane: puts to place, counts to publish, failures to act on.
#pragma once

#include <string>
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
    Status status;  ///< OK: connected; else the peer is lost
  };

  EventSink(ChannelEnds& ends, FailureLog& failures, bool gpu_memory)
      : ends_(ends), failures_(failures), host_only_(!gpu_memory) {}

  std::vector<PeerEvent> take_peer_events() { return std::exchange(peer_events_, {}); }
  bool has_peer_events() const { return !peer_events_.empty(); }

  Status place(transport::ChannelId channel, std::uint16_t region, std::uint64_t offset, std::uint32_t length,
               transport::Target& target) override;
  void arrived(transport::ChannelId channel, std::uint64_t count) override;
  void completed(transport::ChannelId channel, std::uint64_t count) override;
  void channel_failed(transport::ChannelId channel, const Status& why) override;
  void peer_connected(transport::PeerId peer) override { peer_events_.push_back({peer, {}}); }
  void peer_failed(transport::PeerId peer, const Status& why) override {
    peer_events_.push_back({peer, why});
  }

 private:
  ChannelEnds& ends_;
  FailureLog& failures_;
  const bool host_only_;
  std::vector<PeerEvent> peer_events_;
};

}  // namespace mkernel::dataplane
