// What the puts of a test carry.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "daemon/transport/transport.h"

namespace mkernel::test {

/// The payload of put `number`.
void fill_payload(std::byte* out, std::uint64_t bytes, transport::ChannelKey key, std::uint64_t number);

/// A length function: log-uniform in 1..max_bytes, every put another, the same for a seed.
std::function<std::uint32_t(std::uint64_t)> random_lengths(std::uint32_t max_bytes, std::uint64_t seed);
/// The same for every put.
inline auto always(std::uint32_t length) {
  return [length](std::uint64_t) { return length; };
}

}  // namespace mkernel::test
