// Addresses of RDMA ports, and which of a port's many to use.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mkernel::topology {

enum class GidType { kInfiniband, kRoceV1, kRoceV2, kOther };

const char* name_of(GidType type);

/// One entry of a port's GID table.
struct Gid {
  std::uint32_t index = 0;
  std::array<std::uint8_t, 16> bytes{};
  GidType type = GidType::kOther;
  std::string interface;  ///< network interface it belongs to; empty on InfiniBand

  bool ipv4() const;        ///< ::ffff:a.b.c.d
  bool link_local() const;  ///< fe80::/10: reaches no further than the switch
  bool empty() const;       ///< a slot of the table without an address
  /// "::ffff:10.0.0.1", "fe80::1".
  std::string text() const;

  /// Sysfs's "fe80:0000:0000:0000:0002:c903:00a1:b2c3". Nothing for anything else.
  static std::optional<std::array<std::uint8_t, 16>> parse(std::string_view text);
};

enum class AddressFamily { kIpv4, kIpv6 };

/// The GID that both ends of a RoCE connection agree on without a number in anybody's configuration: RoCE v2
/// before v1 (which no router forwards), an address that is routed before a link-local one, the wanted family
/// before the other, the lowest index. Numbers in the table differ from node to node and from container to
/// container, so none is preferred. Null when `gids` is empty.
const Gid* choose_roce_gid(const std::vector<Gid>& gids, AddressFamily wanted);

}  // namespace mkernel::topology
