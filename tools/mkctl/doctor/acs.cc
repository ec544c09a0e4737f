#include "tools/mkctl/doctor/acs.h"

#include <cstddef>

namespace mkernel::mkctl::doctor {
namespace {

constexpr std::size_t kExtended = 0x100, kConfigSpace = 4096;
constexpr std::uint32_t kAcsCapability = 0x000d;
constexpr std::size_t kAcsControl = 6;
constexpr std::uint32_t kRequestRedirect = 1U << 2, kCompletionRedirect = 1U << 3;

std::uint32_t word(const std::vector<std::uint8_t>& config, std::size_t at, std::size_t bytes) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < bytes; ++i) value |= std::uint32_t{config[at + i]} << (8 * i);
  return value;
}

}  // namespace

std::optional<bool> acs_redirects(const std::vector<std::uint8_t>& config) {
  // A header holds identifier (16 bits), version (4) and the next header's offset (12). A list has at most
  // one header per 4 bytes: longer ones are loops.
  std::size_t at = kExtended;
  for (std::size_t steps = 0; steps < kConfigSpace / 4; ++steps) {
    if (at < kExtended || at + kAcsControl + 2 > config.size()) return std::nullopt;
    const std::uint32_t header = word(config, at, 4);
    if (header == 0xffffffff) return std::nullopt;
    if ((header & 0xffff) == kAcsCapability)
      return (word(config, at + kAcsControl, 2) & (kRequestRedirect | kCompletionRedirect)) != 0;
    at = header >> 20;
    if (at == 0) return false;  // the end: a bridge without ACS redirects nothing
  }
  return std::nullopt;
}

}  // namespace mkernel::mkctl::doctor
