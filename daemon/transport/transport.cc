#include "daemon/transport/transport.h"

namespace mkernel::transport {

Status TransportSink::arrival_word(ChannelId channel, ArrivalWord&) {
  return {StatusCode::kUnimplemented, "channel " + std::to_string(channel) + " has no arrival word"};
}

void TransportSink::path_changed(PeerId, std::string_view, const Status&) {}

void TransportSink::send_to_peer(PeerId, std::span<const std::byte>) {}

std::uint32_t Transport::message_version() const {
  return 0;
}

void Transport::receive_from_peer(PeerId, std::span<const std::byte>) {}

void Transport::quiesce(ChannelId) {}

bool Transport::quiet(ChannelId) const {
  return true;
}

void Transport::retire(const memory::Region&) {}

bool Transport::holds(const memory::Region&) const {
  return true;
}

void Transport::forget(const memory::Region&) {}

Status Transport::set_link(PeerId peer, const LinkShape&) {
  return {StatusCode::kUnimplemented, "transport " + capabilities().name +
                                          " has no link shape to set (peer " + std::to_string(peer) +
                                          "); only the emulated fabric has"};
}

}  // namespace mkernel::transport
