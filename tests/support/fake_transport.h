// A transport that goes nowhere: it records every put and completes them when the test says so. The transport
// itself belongs to the proxy; the test holds the FakeWire that both share.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "daemon/transport/transport.h"

namespace mkernel::test {

/// One put as the transport took it, its payload copied at once.
struct RecordedPut {
  transport::Put put;
  transport::ChannelKey key = 0;
  std::vector<std::byte> payload;
};

/// Any thread.
class FakeWire {
 public:
  /// How many puts submit() may take from now on; each one taken uses one up.
  void allow(std::uint64_t puts);
  void allow_everything() { allow(std::numeric_limits<std::uint64_t>::max() / 2); }
  /// From now on every put completes at the next poll.
  void complete_at_once();
  /// The first `count` puts of the channel are complete, told at the next poll.
  void complete(transport::ChannelKey key, std::uint64_t count);
  /// The first put of a channel with this key that the transport refuses for ever.
  void fail_channel(transport::ChannelKey key, const Status& why);
  void fail_peer(transport::PeerId peer, const Status& why);
  /// The transport tells of a path to the peer.
  void change_path(transport::PeerId peer, const std::string& path, const Status& lost);
  /// The transport says that it holds the region, until it is released: a put into it is under way.
  void hold(const memory::Region& region);
  void release(const memory::Region& region);
  /// Channels that were told to stop are not quiet until this is called again with false.
  void keep_busy(bool busy);
  std::size_t stopped_channels() const;
  /// How often the transport was asked whether it holds a region.
  std::uint64_t asked_for_holds() const;
  /// The peer sends: a put arrives on an inbound channel.
  void inbound(transport::ChannelKey key, std::uint16_t region, std::uint64_t offset,
               std::vector<std::byte> payload, std::uint64_t count);

  std::vector<RecordedPut> puts() const;
  std::size_t put_count() const;
  std::size_t open_channels() const;
  bool closed() const;
  /// Whether the transport was told to forget the region.
  bool forgotten(const memory::Region& region) const;
  std::vector<Status> refused_inbound() const;

  /// Payload copies cost memory in long tests: off, only the puts are recorded; both off, only the count.
  void record(bool puts, bool payload);

 private:
  friend class FakeTransport;
  struct Inbound {
    transport::ChannelKey key;
    std::uint16_t region;
    std::uint64_t offset;
    std::vector<std::byte> payload;
    std::uint64_t count;
  };
  struct Channel {
    transport::ChannelId id = 0;
    bool outbound = false;
    std::uint64_t submitted = 0;
    std::uint64_t completed = 0;  ///< told to the sink
    std::uint64_t wanted = 0;     ///< to tell
  };

  mutable std::mutex mutex_;
  /// The memory of the tables below. When a quarter of a million channels gave their nodes back to malloc one
  /// by one, its next call on the proxy thread sorted ten thousand of them: a slice of 5 ms that was the
  /// fake's, not the proxy's.
  std::pmr::unsynchronized_pool_resource nodes_;
  ipc::UniqueFd event_;
  std::uint64_t allowed_ = 0;
  bool complete_at_once_ = false;
  bool busy_ = false;
  std::pmr::set<transport::ChannelId> stopped_{&nodes_};
  bool record_puts_ = true;
  bool record_payload_ = true;
  bool closed_ = false;
  std::uint64_t put_count_ = 0;
  std::vector<RecordedPut> puts_;
  std::pmr::map<transport::ChannelKey, Channel> outbound_{&nodes_};
  std::pmr::map<transport::ChannelKey, Channel> inbound_{&nodes_};
  std::set<transport::ChannelKey> due_;  ///< outbound ones with completions to tell
  std::pmr::map<transport::ChannelId, transport::ChannelKey> keys_{&nodes_};
  std::vector<std::pair<transport::ChannelKey, Status>> channel_failures_;
  std::vector<std::pair<transport::PeerId, Status>> peer_failures_;
  struct PathChange {
    transport::PeerId peer;
    std::string path;
    Status lost;
  };
  std::vector<PathChange> path_changes_;
  std::vector<Inbound> inbound_puts_;
  std::vector<std::pair<transport::PeerId, std::string>> messages_;
  std::vector<Status> refused_inbound_;
  std::set<const memory::Region*> forgotten_;
  std::set<const memory::Region*> held_;
  mutable std::uint64_t asked_for_holds_ = 0;

  void wake();
};

class FakeTransport final : public transport::Transport {
 public:
  explicit FakeTransport(std::shared_ptr<FakeWire> wire);

  const transport::Capabilities& capabilities() const override { return capabilities_; }
  std::string local_endpoint() const override { return "fake"; }
  void attach(transport::TransportSink& sink) override { sink_ = &sink; }
  Status connect(transport::PeerId peer, const transport::PeerAddress& address) override;
  void disconnect(transport::PeerId) override {}
  /// Sent back at the next poll, behind "echo ".
  void receive_from_peer(transport::PeerId peer, std::span<const std::byte> message) override;
  Status open_outbound(transport::ChannelId channel, transport::PeerId peer,
                       transport::ChannelKey key) override;
  Status open_inbound(transport::ChannelId channel, transport::PeerId peer,
                      transport::ChannelKey key) override;
  void close_channel(transport::ChannelId channel) override;
  std::size_t submit(std::span<const transport::Put> puts) override;
  std::size_t poll() override;
  int event_fd() const override;
  bool holds(const memory::Region& region) const override;
  void quiesce(transport::ChannelId channel) override;
  bool quiet(transport::ChannelId channel) const override;
  void forget(const memory::Region& region) override;
  void close() override;

 private:
  Status open(bool outbound, transport::ChannelId channel, transport::ChannelKey key);

  transport::Capabilities capabilities_;
  std::shared_ptr<FakeWire> wire_;
  transport::TransportSink* sink_ = nullptr;
};

}  // namespace mkernel::test
