#include "daemon/transport/transport.h"

namespace mkernel::transport {

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
