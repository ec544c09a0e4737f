// What RC and SRD share: who has an address, whether packets get there, and bytes in and out of memory.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "tests/support/fake_nic/objects.h"

namespace mkernel::test::nic {
namespace {

bool same(const ibv_gid& a, const ibv_gid& b) {
  return std::memcmp(a.raw, b.raw, sizeof(a.raw)) == 0;
}

bool link_local(const ibv_gid& gid) {
  return gid.raw[0] == 0xfe && (gid.raw[1] & 0xc0) == 0x80;
}

bool has(const PortSettings& port, const ibv_gid& gid, std::uint32_t type) {
  return std::any_of(port.gids.begin(), port.gids.end(),
                     [&](const GidSettings& own) { return own.type == type && same(own.gid, gid); });
}

/// InfiniBand goes by LID; RoCE and EFA by GID, of the kind that the sender's own is. Beyond the switch only
/// what may hop.
bool reaches(const PortSettings& from, const PortSettings& to, const ibv_ah_attr& address) {
  if (from.link_layer != to.link_layer) return false;
  if (from.link_layer == IBV_LINK_LAYER_INFINIBAND) return address.dlid != 0 && address.dlid == to.lid;
  if (address.is_global == 0 || address.grh.sgid_index >= from.gids.size()) return false;
  const GidSettings& own = from.gids[address.grh.sgid_index];
  const bool routed = own.type == IBV_GID_TYPE_ROCE_V2 && !link_local(address.grh.dgid);
  return (!routed || address.grh.hop_limit > 1) && has(to, address.grh.dgid, own.type);
}

}  // namespace

Place destination(const Device& from, std::uint8_t port, const ibv_ah_attr& address) {
  const PortSettings& own = from.settings.ports[port - 1U];
  for (const auto& device : from.fabric->devices) {
    for (std::size_t i = 0; i < device->settings.ports.size(); ++i) {
      if (device->settings.efa.has_value() == from.settings.efa.has_value() &&
          reaches(own, device->settings.ports[i], address)) {
        return {device.get(), static_cast<std::uint8_t>(i + 1)};
      }
    }
  }
  return {};
}

bool carries(const Device& from, std::uint8_t port, const Place& to) {
  if (to.device == nullptr || from.dead || to.device->dead) return false;
  return from.settings.ports[port - 1U].state == IBV_PORT_ACTIVE &&
         to.device->settings.ports[to.port - 1U].state == IBV_PORT_ACTIVE &&
         !from.fabric->path(&from, to.device).down;
}

bool gather(Qp& qp, const Message& message, std::vector<std::byte>& out) {
  if (message.inlined) {
    out = message.inline_data;
    return true;
  }
  out.clear();
  for (const ibv_sge& part : message.parts) {
    if (part.length == 0) continue;
    const std::byte* const from = reach(*qp.device, part.lkey, qp.qp_base.pd, part.addr, part.length, 0);
    if (from == nullptr) return false;
    out.insert(out.end(), from, from + part.length);
  }
  return true;
}

ibv_wc inbound(const Qp& from, const Message& message) {
  ibv_wc wc{};
  wc.byte_len = static_cast<std::uint32_t>(message.length);
  wc.opcode = writes(message) ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
  wc.src_qp = from.qp_base.qp_num;
  if (message.opcode != IBV_WR_SEND) {
    wc.wc_flags = IBV_WC_WITH_IMM;
    wc.imm_data = message.immediate;
  }
  return wc;
}

void store(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  if (bytes == sizeof(std::uint64_t) && reinterpret_cast<std::uintptr_t>(to) % sizeof(std::uint64_t) == 0) {
    std::uint64_t word = 0;
    std::memcpy(&word, from, sizeof(word));
    std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(to))
        .store(word, std::memory_order_release);
    return;
  }
  if (bytes > 0) std::memcpy(to, from, bytes);
}

bool scatter(Qp& qp, const Receive& receive, const std::vector<std::byte>& data) {
  std::uint64_t at = 0;
  for (const ibv_sge& part : receive.parts) {
    const std::uint64_t bytes = std::min<std::uint64_t>(part.length, data.size() - at);
    if (bytes == 0) continue;
    std::byte* const to =
        reach(*qp.device, part.lkey, qp.qp_base.pd, part.addr, bytes, IBV_ACCESS_LOCAL_WRITE);
    if (to == nullptr) return false;
    store(to, data.data() + at, bytes);
    at += bytes;
  }
  return at == data.size();
}

}  // namespace mkernel::test::nic
