// The outbound half of a link: windows of puts, the shaped wire, announcements of source regions,
// retransmission.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "daemon/transport/emulated/context.h"
#include "daemon/transport/emulated/message.h"
#include "daemon/transport/emulated/shaper.h"
#include "daemon/transport/window/send_window.h"

namespace mkernel::transport::emulated {

/// Outlives connections: what a lost one did not deliver is replayed on the next. One thread.
class Sender {
 public:
  /// `fence` is this direction's page, shared with the peer.
  Sender(Context& context, std::string peer, std::uint64_t seed, FencePage& fence);

  Status open(ChannelId channel, ChannelKey key);
  /// Forgets the channel: once this returns, the peer publishes no put of it any more.
  void close(ChannelId channel);
  /// False when the channel's window is full. A channel that has failed swallows what it is given.
  bool submit(const Put& put, Time now);
  /// True while a put in flight reads from the region.
  bool reads(const memory::Region& region) const;
  /// No put will read from the region any more: the peer is told with the next flush().
  void forget(const memory::Region& region);
  void set_shape(const LinkShape& shape) { shaper_.set_shape(shape); }

  /// A connection is there: channels flow again as the peer says where to resume.
  void connected(int socket);
  void lost();

  /// Packets of the peer. An error means that it does not keep to the protocol.
  Status on_acks(std::span<const CountEntry> counts, Time now);
  void on_held(std::span<const CountEntry> counts, Time now);
  void on_nack(ChannelKey key, const Status& why);

  /// Sends what may leave by now. Errors: kResourceExhausted when the socket is full, kUnavailable when it is
  /// gone.
  Status flush(Time now);
  /// When flush() has something to do again, as far as timers go.
  std::optional<Time> next_deadline() const;

 private:
  struct Channel {
    explicit Channel(std::shared_ptr<PeerLoad> load) : window(kWindow, std::move(load)) {}

    ChannelId id = 0;
    ChannelKey key = 0;
    SendWindow window;
    bool flowing = false;  ///< the peer said on this connection where to go on
    bool failed = false;
    std::uint32_t on_wire = 0;                  ///< parcels in the shaper
    std::uint32_t patience = 1;                 ///< multiple of the retransmit time-out
    Time last_activity{};                       ///< or, in the future, when the last put on its way arrives
    std::unordered_set<std::uint64_t> regions;  ///< sources it has used

    void note_activity(Time at) { last_activity = std::max(last_activity, at); }
  };
  struct Source {
    std::uint32_t channels = 0;  ///< open channels that have used it
    bool announced = false;      ///< on this connection
  };

  Channel* find(ChannelId channel);
  Channel* find_key(ChannelKey key);
  void fail(Channel& channel, const Status& why);
  void transmit(Channel& channel, const Put& put, Time now);
  void transmit_unsent(Channel& channel, Time now);
  void acknowledged(Channel& channel, std::uint64_t before, Time now);
  void retransmit_overdue(Time now);
  Status announce(const memory::Region& region);
  void retire(std::uint64_t region, Source& source);
  void retire_idle_sources();
  Status withdraw_unused();
  Status send_batch();

  Context& context_;
  const std::shared_ptr<PeerLoad> load_ = std::make_shared<PeerLoad>();
  std::string peer_;
  FencePage& fence_;
  LinkShaper shaper_;
  int socket_ = -1;
  std::unordered_map<ChannelId, std::unique_ptr<Channel>> channels_;
  std::unordered_map<ChannelKey, Channel*> by_key_;
  /// What the peer said of channels before they were opened here: it says so once per connection.
  std::unordered_map<ChannelKey, std::uint64_t> early_held_;
  std::unordered_map<std::uint64_t, Source> sources_;  ///< by Region::id
  std::vector<std::uint64_t> unused_;                  ///< sources the peer is to forget
  std::size_t announced_ = 0;
  PutsPacket batch_{};
  std::optional<Time> next_check_;  ///< for overdue acknowledgements
};

}  // namespace mkernel::transport::emulated
