#include "daemon/dataplane/ports.h"

namespace mkernel::dataplane {
namespace {

/// A bijection on 64 bits that spreads every input bit over the whole word (xor-shift and odd
/// multiplications).
constexpr std::uint64_t spread(std::uint64_t x) {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ULL;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ULL;
  return x ^ (x >> 32);
}

}  // namespace

// Bijective in (source, target, lane) for one instance, so channels of a group never share a key; between
// groups the random instance makes it improbable, and a transport refuses to open a key twice.
transport::ChannelKey channel_key(std::uint64_t instance, std::uint32_t source, std::uint32_t target,
                                  std::uint32_t lane) {
  const std::uint64_t place = (std::uint64_t{source} << 40) | (std::uint64_t{target} << 16) | lane;
  return spread(spread(instance) ^ place);
}

}  // namespace mkernel::dataplane
