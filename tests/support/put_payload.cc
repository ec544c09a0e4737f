#include "tests/support/put_payload.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace mkernel::test {
namespace {

std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace

void fill_payload(std::byte* out, std::uint64_t bytes, transport::ChannelKey key, std::uint64_t number) {
  std::uint64_t state = mix(mix(key) ^ number);
  std::uint64_t at = 0;
  for (; at + 8 <= bytes; at += 8) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    std::memcpy(out + at, &state, 8);
  }
  state = mix(state);
  std::memcpy(out + at, &state, bytes - at);
}

std::function<std::uint32_t(std::uint64_t)> random_lengths(std::uint32_t max_bytes, std::uint64_t seed) {
  return [=](std::uint64_t number) {
    const double fraction =
        static_cast<double>(mix(seed ^ mix(number)) >> 11) / static_cast<double>(1ULL << 53);
    const double length = std::exp2(fraction * std::log2(static_cast<double>(max_bytes)));
    return std::clamp(static_cast<std::uint32_t>(length), 1U, max_bytes);
  };
}

}  // namespace mkernel::test
