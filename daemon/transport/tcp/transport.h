// The TCP transport as the data plane sees it: tables of peers and channels around the parts in this folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/transport/tcp/acceptor.h"
#include "daemon/transport/tcp/channel.h"
#include "daemon/transport/tcp/context.h"
#include "daemon/transport/tcp/peer.h"
#include "daemon/transport/tcp/tcp.h"
#include "daemon/transport/transport.h"

namespace mkernel::transport::tcp {

class TcpTransport final : public Transport, private PeerDirectory {
 public:
  /// Opens what a transport needs besides its listening socket.
  static Result<std::unique_ptr<TcpTransport>> make(const TcpOptions& options, ipc::UniqueFd listener,
                                                    std::string endpoint);
  ~TcpTransport() override;

  const Capabilities& capabilities() const override { return capabilities_; }
  std::string local_endpoint() const override { return endpoint_; }
  void attach(TransportSink& sink) override;
  Status connect(PeerId peer, const PeerAddress& address) override;
  void disconnect(PeerId peer) override;
  void receive_from_peer(PeerId peer, std::span<const std::byte> message) override;
  Status open_outbound(ChannelId channel, PeerId peer, ChannelKey key) override;
  Status open_inbound(ChannelId channel, PeerId peer, ChannelKey key) override;
  void close_channel(ChannelId channel) override;
  std::size_t submit(std::span<const Put> puts) override;
  std::size_t poll() override;
  int event_fd() const override { return context_.epoll.get(); }
  bool holds(const memory::Region& region) const override;
  void forget(const memory::Region& region) override { context_.gpu.forget(region); }
  void close() override;

  /// For tests and people.
  const Statistics& statistics() const { return context_.statistics; }

 private:
  TcpTransport(const TcpOptions& options, ipc::UniqueFd listener, std::string endpoint);

  Peer* find_peer(std::uint64_t boot_id, std::string_view node) override;
  Result<Peer*> peer_for_channel(ChannelId channel, PeerId peer, ChannelKey key);
  bool take(const Put& put, Clock::time_point now);
  void collect_events();
  void expire();
  void arm_timer();

  Context context_;
  const Capabilities capabilities_;
  const std::string endpoint_;
  Acceptor acceptor_;
  std::unordered_map<PeerId, std::unique_ptr<Peer>> peers_;
  std::vector<std::unique_ptr<Outbound>> outbound_;  ///< by ChannelId
  std::vector<std::unique_ptr<Inbound>> inbound_;    ///< by ChannelId
  Clock::time_point armed_ = kNever;                 ///< what the timer is set to
  bool closed_ = false;
};

}  // namespace mkernel::transport::tcp
