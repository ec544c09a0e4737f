#include "daemon/topology/gid.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <tuple>

namespace mkernel::topology {

const char* name_of(GidType type) {
  switch (type) {
    case GidType::kInfiniband: return "InfiniBand";
    case GidType::kRoceV1: return "RoCE v1";
    case GidType::kRoceV2: return "RoCE v2";
    case GidType::kOther: break;
  }
  return "other";
}

bool Gid::ipv4() const {
  return std::all_of(bytes.begin(), bytes.begin() + 10, [](std::uint8_t b) { return b == 0; }) &&
         bytes[10] == 0xff && bytes[11] == 0xff;
}

bool Gid::link_local() const {
  return bytes[0] == 0xfe && (bytes[1] & 0xc0U) == 0x80;
}

bool Gid::empty() const {
  return std::all_of(bytes.begin(), bytes.end(), [](std::uint8_t b) { return b == 0; });
}

std::string Gid::text() const {
  char text[INET6_ADDRSTRLEN];
  return ::inet_ntop(AF_INET6, bytes.data(), text, sizeof(text));
}

std::optional<std::array<std::uint8_t, 16>> Gid::parse(std::string_view text) {
  constexpr std::size_t kGroups = 8, kDigits = 4;
  if (text.size() != kGroups * (kDigits + 1) - 1) return std::nullopt;
  std::array<std::uint8_t, 16> bytes{};
  for (std::size_t group = 0; group < kGroups; ++group) {
    const std::string_view digits = text.substr(group * (kDigits + 1), kDigits);
    if (group > 0 && text[group * (kDigits + 1) - 1] != ':') return std::nullopt;
    std::uint16_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + kDigits, value, 16);
    if (error != std::errc{} || end != digits.data() + kDigits) return std::nullopt;
    bytes[2 * group] = static_cast<std::uint8_t>(value >> 8);
    bytes[2 * group + 1] = static_cast<std::uint8_t>(value);
  }
  return bytes;
}

const Gid* choose_roce_gid(const std::vector<Gid>& gids, AddressFamily wanted) {
  const auto rank = [&](const Gid& gid) {
    const bool other_family = gid.ipv4() != (wanted == AddressFamily::kIpv4);
    return std::tuple(gid.type != GidType::kRoceV2, gid.link_local(), other_family, gid.index);
  };
  const auto best = std::min_element(gids.begin(), gids.end(),
                                     [&](const Gid& a, const Gid& b) { return rank(a) < rank(b); });
  return best == gids.end() ? nullptr : &*best;
}

}  // namespace mkernel::topology
