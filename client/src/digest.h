#pragma once

#include <cstdint>
#include <string_view>

namespace mkernel::client {

/// FNV-1a of a text: tells texts apart that differ beyond what fits into a field.
inline std::uint64_t digest_of(std::string_view text) {
  std::uint64_t digest = 14695981039346656037ULL;
  for (const char c : text) digest = (digest ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return digest;
}

}  // namespace mkernel::client
