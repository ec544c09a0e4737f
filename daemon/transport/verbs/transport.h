// The verbs transport: peers, channels and paths, one poll() for all.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "daemon/transport/verbs/receiver.h"
#include "daemon/transport/verbs/sender.h"

namespace mkernel::transport::verbs {

class VerbsTransport final : public Transport {
 public:
  static Result<std::unique_ptr<VerbsTransport>> make(const VerbsOptions& options);
  ~VerbsTransport() override;

  const Capabilities& capabilities() const override { return capabilities_; }
  /// The ports, "mlx5_0:1, mlx5_1:1": peers know by it how many paths there are. The rest travels by
  /// send_to_peer().
  std::string local_endpoint() const override { return endpoint_; }
  std::uint32_t message_version() const override { return kMessageVersion; }
  void attach(TransportSink& sink) override { context_.sink = &sink; }
  Status connect(PeerId peer, const PeerAddress& address) override;
  void disconnect(PeerId peer) override;
  void receive_from_peer(PeerId peer, std::span<const std::byte> message) override;
  Status open_outbound(ChannelId channel, PeerId peer, ChannelKey key) override;
  Status open_inbound(ChannelId channel, PeerId peer, ChannelKey key) override;
  void quiesce(ChannelId channel) override;
  bool quiet(ChannelId channel) const override;
  void close_channel(ChannelId channel) override;
  std::size_t submit(std::span<const Put> puts) override;
  std::size_t poll() override;
  int event_fd() const override { return epoll_.get(); }
  void retire(const memory::Region& region) override;
  bool holds(const memory::Region& region) const override;
  void forget(const memory::Region& region) override;
  void close() override;

 private:
  /// One life of a peer node.
  struct Peer {
    Peer(Context& context, PeerId id_, const PeerAddress& remote, Time now)
        : id(id_),
          identity(remote.identity),
          sender(context, id_, remote, now),
          receiver(context, id_, remote.identity) {}
    const PeerId id;
    const Identity identity;
    Sender sender;
    Receiver receiver;
    bool failed = false;
  };
  /// A channel id in use: one of the two ends is set.
  struct End {
    Peer* peer = nullptr;
    Outbound* outbound = nullptr;
    Inbound* inbound = nullptr;
  };

  explicit VerbsTransport(const VerbsOptions& options);
  Status make_events();
  Status watch(int fd);
  Result<Peer*> peer_for_channel(ChannelId channel, PeerId peer) const;
  bool take(const Put& put, Time now);
  [[gnu::cold]] void refuse(Outbound& channel, const Put& put);
  std::size_t take_registrations();
  std::size_t receive_messages(Time now);
  void receive(Peer& peer, std::span<const std::byte> message, Time now);
  void fail(Peer& peer, const Status& why, bool tell);
  std::size_t poll_peers(Time now);
  std::size_t send_messages();
  void look_at_events(Time now);
  bool arm_completions();
  void arm_timer(Time now);

  Context context_;  ///< first: the queue pairs of peers_ go before the devices
  Capabilities capabilities_;
  std::string endpoint_;
  std::unordered_map<PeerId, std::unique_ptr<Peer>> peers_;
  std::vector<End> ends_;  ///< by channel id
  std::vector<std::pair<PeerId, std::vector<std::byte>>> inbox_;
  bool closed_ = false;

  ipc::UniqueFd epoll_;  ///< completion channels, asynchronous events, the timer
  ipc::UniqueFd timer_;
  Time timer_due_ = kNever;
  Time looked_{};  ///< at the events
  // Arrivals wake nobody here: they are looked for now and then, more rarely the longer none has come.
  Time next_look_{};
  std::chrono::milliseconds look_interval_{1};
};

}  // namespace mkernel::transport::verbs
