#include "daemon/transport/rdma/context.h"

namespace mkernel::transport::rdma {
namespace {

Status other_life(const std::string& node, std::uint64_t is, std::uint64_t expected) {
  return {StatusCode::kFailedPrecondition, "node " + node + " has boot id " + std::to_string(is) + ", not " +
                                               std::to_string(expected) + ": it was started anew"};
}

}  // namespace

Status check_lives(const Identity& self, const Identity& peer, std::uint64_t to, std::uint64_t from) {
  if (from != peer.boot_id) return other_life(peer.node, from, peer.boot_id);
  return to == self.boot_id ? Status() : other_life(self.node, self.boot_id, to);
}

}  // namespace mkernel::transport::rdma
