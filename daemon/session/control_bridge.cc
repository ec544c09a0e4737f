#include "daemon/session/control_bridge.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <utility>

#include "daemon/session/session_server.h"

namespace mkernel::session {

struct ControlBridge::Bound {
  SessionServer* sessions = nullptr;
  Peers peers;
};

ControlBridge::ControlBridge(boost::asio::io_context& io) : io_(io), bound_(std::make_shared<Bound>()) {}
ControlBridge::~ControlBridge() = default;

void ControlBridge::bind(SessionServer& sessions, Peers peers) {
  *bound_ = {&sessions, std::move(peers)};
}

void ControlBridge::unbind() {
  *bound_ = {};
}

void ControlBridge::session_failed(dataplane::SessionId session, const Status& why) {
  boost::asio::post(io_, [bound = bound_, session, why] {
    if (bound->sessions != nullptr) bound->sessions->session_failed(session, why);
  });
}

void ControlBridge::group_failed(const dataplane::GroupKey& group, std::int32_t culprit, const Status& why) {
  boost::asio::post(io_, [bound = bound_, group, culprit, why] {
    if (bound->sessions != nullptr) bound->sessions->channel_failed(group, culprit, why);
  });
}

void ControlBridge::peer_connected(std::uint32_t rail, transport::PeerId peer) {
  boost::asio::post(io_, [bound = bound_, rail, peer] {
    if (bound->peers.connected) bound->peers.connected(rail, peer);
  });
}

void ControlBridge::peer_failed(transport::PeerId peer, const Status& why) {
  boost::asio::post(io_, [bound = bound_, peer, why] {
    if (bound->peers.failed) bound->peers.failed(peer, why);
  });
}

void ControlBridge::path_changed(std::uint32_t rail, transport::PeerId peer, const std::string& path,
                                 const Status& lost) {
  boost::asio::post(io_, [bound = bound_, rail, peer, path, lost] {
    if (bound->peers.path_changed) bound->peers.path_changed(rail, peer, path, lost);
  });
}

void ControlBridge::message_to_peer(std::uint32_t rail, transport::PeerId peer,
                                    std::vector<std::byte> message) {
  boost::asio::post(io_, [bound = bound_, rail, peer, message = std::move(message)] {
    if (bound->peers.message) bound->peers.message(rail, peer, message);
  });
}

}  // namespace mkernel::session
