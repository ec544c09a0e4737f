// The EFA transport: peers and channels, one poll() for all.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "daemon/transport/efa/peer.h"

namespace mkernel::transport::efa {

class EfaTransport final : public Transport {
 public:
  static Result<std::unique_ptr<EfaTransport>> make(const EfaOptions& options);
  ~EfaTransport() override;

  const Capabilities& capabilities() const override { return capabilities_; }
  /// The devices by preference, for peers to know how many there are, and for people. What else peers need
  /// travels by send_to_peer().
  std::string local_endpoint() const override { return endpoint_; }
  std::uint32_t message_version() const override { return kMessageVersion; }
  void attach(TransportSink& sink) override { context_.sink = &sink; }
  Status connect(PeerId peer, const PeerAddress& address) override;
  void disconnect(PeerId peer) override;
  void receive_from_peer(PeerId peer, std::span<const std::byte> message) override;
  Status open_outbound(ChannelId channel, PeerId peer, ChannelKey key) override;
  Status open_inbound(ChannelId channel, PeerId peer, ChannelKey key) override;
  void close_channel(ChannelId channel) override;
  std::size_t submit(std::span<const Put> puts) override;
  std::size_t poll() override;
  int event_fd() const override { return epoll_.get(); }
  void retire(const memory::Region& region) override;
  bool holds(const memory::Region& region) const override;
  void forget(const memory::Region& region) override;
  void close() override;

 private:
  /// A channel id in use: one of the two ends is set.
  struct End {
    Peer* peer = nullptr;
    Outbound* outbound = nullptr;
    Inbound* inbound = nullptr;
  };

  explicit EfaTransport(const EfaOptions& options);
  Status open_device(const std::string& name);
  Status make_events();
  Status watch(int fd);
  Result<Peer*> peer_for_channel(ChannelId channel, PeerId peer) const;
  End& end_of(ChannelId channel);
  bool take(const Put& put, Time now);
  [[gnu::cold]] void refuse(const End& end, const Put& put);
  std::size_t take_registrations();
  std::size_t receive_messages(Time now);
  std::size_t poll_peers(Time now);
  std::size_t send_messages();
  std::size_t look_at_devices(Time now);
  std::size_t fail_without_devices();
  void fail(PeerId id, Peer& peer, const Status& why, bool tell);
  void arm_timer(Time now);

  Context context_;  ///< first: queues and registrations go before the device
  Capabilities capabilities_;
  std::string endpoint_;
  std::unordered_map<PeerId, std::unique_ptr<Peer>> peers_;
  std::vector<End> ends_;  ///< by channel id
  std::vector<std::pair<PeerId, std::vector<std::byte>>> inbox_;
  bool closed_ = false;

  ipc::UniqueFd epoll_;  ///< completion channels, asynchronous events, the timer
  ipc::UniqueFd timer_;
  Time timer_due_ = kNever;
  Time looked_{};  ///< at the devices' events
};

}  // namespace mkernel::transport::efa
