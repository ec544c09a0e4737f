// From the proxy threads to the control thread: every report of a proxy becomes a posted call.
#pragma once

#include <functional>
#include <string>

#include "daemon/dataplane/proxy.h"
#include "proto/abi/status.h"

namespace boost::asio {
class io_context;
}

namespace mkernel::session {

class SessionServer;

/// Made before the proxies, outlives them. bind() on the control thread before any proxy starts; reports
/// after unbind() are dropped.
class ControlBridge final : public dataplane::ControlSink {
 public:
  /// Who wants to hear about peers; called on the control thread.
  struct Peers {
    std::function<void(std::uint32_t rail, transport::PeerId)> connected;
    std::function<void(transport::PeerId, const Status&)> failed;
    std::function<void(std::uint32_t rail, transport::PeerId, const std::string& path, const Status& lost)>
        path_changed;
    /// From the transport of a rail to its like at the peer.
    std::function<void(std::uint32_t rail, transport::PeerId, const std::vector<std::byte>&)> message;
  };

  explicit ControlBridge(boost::asio::io_context& io);
  ~ControlBridge() override;

  void bind(SessionServer& sessions, Peers peers);
  void unbind();

  // ControlSink, any proxy thread.
  void session_failed(dataplane::SessionId session, const Status& why) override;
  void group_failed(const dataplane::GroupKey& group, std::int32_t culprit, const Status& why) override;
  void peer_connected(std::uint32_t rail, transport::PeerId peer) override;
  void peer_failed(transport::PeerId peer, const Status& why) override;
  void path_changed(std::uint32_t rail, transport::PeerId peer, const std::string& path,
                    const Status& lost) override;
  void message_to_peer(std::uint32_t rail, transport::PeerId peer, std::vector<std::byte> message) override;

 private:
  struct Bound;
  boost::asio::io_context& io_;
  std::shared_ptr<Bound> bound_;  ///< its content is touched on the control thread only
};

}  // namespace mkernel::session
