// One life of a peer node: its connection, and the channels to and from it.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "daemon/transport/efa/channel_numbers.h"
#include "daemon/transport/efa/connection.h"

namespace mkernel::transport::efa {

/// Completions carry what they are of: an acknowledgement (this, and the channel's index), or a put (the
/// channel's serial, and the low 32 bits of its number).
inline constexpr std::uint64_t kAcknowledgement = std::uint64_t{1} << 63;

/// Proxy thread.
class Peer final : public rdma::PeerEntry {
 public:
  Peer(Context& context, PeerId peer, const PeerAddress& remote, Time now);

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
  /// Completions are notified. False when they were not before, and some may have come meanwhile.
  bool arm();
  /// Nothing is under way or waited for, and nothing has come for many polls: a notification is early enough.
  bool idle() const;
  Time deadline(Time now) const;

  void retire(const memory::Region& region);
  bool holds(const memory::Region& region) const;
  void forget(const memory::Region& region);
  /// Something that was being registered is there, or has failed.
  void registered();

 private:
  void lose(const Status& why, Time now);
  void forget_epoch();
  void attach_all();
  void ask_to_attach(const Outbound& channel);
  void on_attach(const Attach& message);
  // Messages.
  Status receive_channel(const Message& head, std::span<const std::byte> message);
  Status on_held(const Held& message);
  void on_detach(const ChannelMessage& message);
  void on_detached(ChannelKey key);
  void on_revoke(const RegionMessage& message);
  void on_revoked(const RegionMessage& message);
  void on_resolve(const RegionMessage& message);
  void on_resolved(std::span<const std::byte> bytes);
  void answer_later(const RegionMessage& message);
  /// None: the region is being registered.
  Result<std::optional<std::vector<std::byte>>> resolve(Inbound& channel, std::uint32_t region);
  void attach(Inbound& channel, std::uint32_t serial);
  void confirm_revoked(Outbound& channel);
  // Numbers (peer_numbers.cc).
  /// A number that a channel has left with requests under way.
  struct Departed {
    std::uint32_t number = 0;
    std::uint32_t flying = 0;
    std::uint64_t outstanding = 0;  ///< puts of it that may still wait at the peer
  };
  std::uint32_t new_serial(Outbound& channel);
  void leave_number(Outbound& channel);
  void release(const Departed& gone);
  void completed_late(std::uint32_t serial);
  void on_taken(std::uint32_t number);
  void close_number(Inbound& channel);
  void on_released(std::uint32_t number);
  void attach_waiting();
  void take_late();
  template <typename T>
  void say(const T& message) {
    context_.say(id, message);
  }
  Message head(MessageType type) const { return {.type = type, .epoch = connection_.epoch()}; }
  // Completions.
  bool take(const ibv_wc& completion, Time now, Status& why);
  void written(std::uint64_t request);
  Outbound* landed(std::uint64_t request);
  void proved(Time now);
  void acknowledgement_sent(std::uint32_t number);
  [[gnu::cold]] bool request_failed(const ibv_wc& completion, Status& why);
  bool arrived(const Immediate& immediate, Status& why);
  bool acknowledged(std::uint32_t index, WireSequence sequence, Status& why);
  void report(Outbound& channel);
  void publish();
  void mind_silence(bool heard, Time now);
  std::chrono::milliseconds quiet_limit() const;
  // Puts.
  bool make_request(Outbound& channel, const Put& put, Request& out);
  rdma::Registrations& memory_of(ChannelMemory& memory);
  const rdma::Registration* source_of(Outbound& channel, const memory::Region& region);
  RemoteRegion* locate(Outbound& channel, std::uint32_t region);
  // The rare paths of a put, kept out of the functions that every put runs through.
  [[gnu::cold]] const rdma::Registration* look_up(Outbound& channel, const memory::Region& region);
  [[gnu::cold]] void ask_for(Outbound& channel, std::uint32_t region);
  [[gnu::cold]] void refuse(Outbound& channel, const Put& put, const RemoteRegion& target);
  std::size_t send_puts(Outbound& channel, Time now);
  std::size_t send_acknowledgements(Time now);

  Outbound* outbound(ChannelKey key) const { return rdma::find_in(outbound_, key); }
  Inbound* inbound(ChannelKey key) const { return rdma::find_in(inbound_, key); }

  Context& context_;
  const std::shared_ptr<PeerLoad> load_ = std::make_shared<PeerLoad>();
  Domains domains_;  ///< before what is made of them
  Connection connection_;
  bool connected_ = false;  ///< the sink was told
  std::unordered_map<ChannelKey, std::unique_ptr<Outbound>> outbound_;
  std::unordered_map<ChannelKey, std::unique_ptr<Inbound>> inbound_;
  /// The peer has asked to attach them before they were opened here, with its serial.
  std::unordered_map<ChannelKey, std::uint32_t> wanted_;
  std::unordered_map<std::uint32_t, Outbound*> by_serial_;
  // Of this epoch: the numbers of what arrives here, and of what goes out as the peer numbers it.
  ChannelNumbers numbers_;
  /// The peer has asked to attach them when no number was free, with its serial.
  std::deque<std::pair<ChannelKey, std::uint32_t>> unnumbered_;
  std::unordered_map<std::uint32_t, Outbound*> by_number_;
  std::unordered_map<std::uint32_t, Departed> departed_;  ///< by serial
  std::unordered_map<std::uint32_t, std::uint64_t>
      untaken_;                           ///< puts by number, until the peer has taken them
  std::vector<Outbound*> active_, turn_;  ///< may have puts to send; those of this flow()
  std::vector<Inbound*> grown_, to_acknowledge_;
  std::vector<Held> held_;  ///< messages that wait for what arrived before them
  std::vector<NumberMessage> released_;
  Status late_status_;                    ///< what was wrong with one of them: the peer is lost
  std::vector<RegionMessage> resolving_;  ///< what is answered when a registration is there
  std::uint32_t next_serial_ = 1, next_grant_ = 1;
  Time heard_{};
  std::uint32_t quiet_polls_ = 0;  ///< since something came
  bool asked_ = false;             ///< since then, whether the peer still is there
  /// Puts sent in this epoch that may still wait at the peer: not acknowledged, or of a channel that has left
  /// its number, until the peer says that it has taken them.
  std::uint64_t outstanding_ = 0;
};

}  // namespace mkernel::transport::efa
