// The 32 bits that travel with every write: what it is about.
#pragma once

#include <cstdint>

#include "daemon/transport/window/receive_window.h"

namespace mkernel::transport::efa {

/// Channels are numbered by the receiver of their puts, per connection. The last number is not a channel's.
inline constexpr std::uint32_t kMaxChannels = (1U << 15) - 1;
inline constexpr std::uint32_t kProbe = kMaxChannels;

/// A put (the low bits of its number), or an acknowledgement (the low bits of how many puts are published).
struct Immediate {
  bool acknowledges = false;
  std::uint32_t channel = 0;  ///< kMaxChannels at most
  WireSequence sequence = 0;
  bool operator==(const Immediate&) const = default;
};

constexpr std::uint32_t pack(const Immediate& value) {
  return (value.acknowledges ? 1U << 31 : 0U) | value.channel << 16 | value.sequence;
}

constexpr Immediate unpack(std::uint32_t bits) {
  return {bits >> 31 != 0, bits >> 16 & kMaxChannels, static_cast<WireSequence>(bits)};
}

}  // namespace mkernel::transport::efa
