// One life of a peer node: its connection, and the channels to and from it.
#pragma once

#include <array>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "daemon/transport/efa/connection.h"

namespace mkernel::transport::efa {

/// Completions carry what they are of: an acknowledgement (this, and the channel's index), or a put (the
/// channel's serial, and the low 32 bits of its number).
inline constexpr std::uint64_t kAcknowledgement = std::uint64_t{1} << 63;

/// Proxy thread.
class Peer {
 public:
  Peer(Context& context, PeerId id, const PeerAddress& remote, Time now);

  const Identity& identity() const { return identity_; }
  bool failed() const { return failed_; }

  Result<Outbound*> add_outbound(ChannelId channel, ChannelKey key);
  Result<Inbound*> add_inbound(ChannelId channel, ChannelKey key);
  void remove(Outbound& channel);
  void remove(Inbound& channel);
  /// The channel has puts to send.
  void offer(Outbound& channel);
  void fail(Outbound& channel, const Status& why);

  /// An error is for good, as poll()'s.
  Status receive(std::span<const std::byte> message, Time now);
  /// Completions, arrivals, time. `lost`: why the peer is given up.
  std::size_t poll(Time now, Status& lost);
  /// Posts what can be posted: acknowledgements, then puts. The number of requests.
  std::size_t flow(Time now);
  /// Something has happened to the device of this node at that position.
  void device_changed(std::uint32_t local, const Device::News& news, Time now);
  /// Why nothing goes to the peer now.
  std::string why_lost() const { return connection_.why(); }
  /// Nothing of the peer is touched any more; says nothing.
  void close();
  bool arm();
  Time deadline(Time now) const;

  void retire(const memory::Region& region);
  bool holds(const memory::Region& region) const;
  void forget(const memory::Region& region);

 private:
  void lose(const Status& why, Time now);
  void forget_epoch();
  void attach_all();
  // Messages.
  Status receive_channel(const Message& head, std::span<const std::byte> message);
  Status on_attached(const Attached& message);
  void on_detached(ChannelKey key);
  void on_revoke(const RegionMessage& message);
  void on_revoked(const RegionMessage& message);
  void on_resolve(const RegionMessage& message);
  void on_resolved(const Resolved& message);
  Result<Resolved> resolve(Inbound& channel, std::uint32_t region);
  void attach(Inbound& channel);
  void confirm_revoked(Outbound& channel);
  template <typename T>
  void say(const T& message) {
    context_.say(id_, bytes_of(message));
  }
  Message head(MessageType type) const { return {.type = type, .epoch = connection_.epoch()}; }
  // Completions.
  Status take(const ibv_wc& completion, Time now);
  Status completed(const ibv_wc& completion, Time now);
  Status arrived(const Immediate& immediate);
  Status acknowledged(std::uint32_t index, WireSequence sequence);
  void report(Outbound& channel);
  void publish();
  void mind_silence(bool heard, Time now);
  std::chrono::milliseconds quiet_limit() const;
  // Puts.
  bool make_request(Outbound& channel, const Put& put, Request& out);
  RemoteRegion* locate(Outbound& channel, std::uint32_t region);
  std::size_t send_puts(Outbound& channel, Time now);
  std::size_t send_acknowledgements(Time now);

  Outbound* outbound(ChannelKey key);
  Inbound* inbound(ChannelKey key);

  Context& context_;
  const PeerId id_;
  const Identity identity_;
  Connection connection_;
  bool failed_ = false;
  bool connected_ = false;  ///< the sink was told
  std::unordered_map<ChannelKey, std::unique_ptr<Outbound>> outbound_;
  std::unordered_map<ChannelKey, std::unique_ptr<Inbound>> inbound_;
  std::unordered_set<ChannelKey> wanted_;  ///< attached by the peer before they were opened here
  std::unordered_map<std::uint32_t, Outbound*> by_serial_;
  std::vector<Inbound*> by_index_;                          ///< this epoch's numbers; null = closed
  std::unordered_map<std::uint32_t, Outbound*> by_number_;  ///< this epoch's, as the peer numbers them
  std::vector<Outbound*> active_, turn_;                    ///< may have puts to send; those of this flow()
  std::vector<Inbound*> grown_, to_acknowledge_;
  std::uint32_t next_serial_ = 1, next_grant_ = 1;
  Time heard_{};
  bool asked_ = false;             ///< since then, whether the peer still is there
  std::uint64_t outstanding_ = 0;  ///< puts sent in this epoch and not acknowledged
};

}  // namespace mkernel::transport::efa
