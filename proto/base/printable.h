// Names that others choose.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>

namespace mkernel::base {

/// Names are printable ASCII, so that no terminal takes one for a command.
inline bool is_printable(std::string_view name) {
  return std::all_of(name.begin(), name.end(), [](unsigned char c) { return c >= 0x20 && c <= 0x7e; });
}

/// Where the first byte stands that is not printable; nothing when all are.
inline std::optional<std::size_t> first_unprintable(std::string_view name) {
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (!is_printable(name.substr(i, 1))) return i;
  }
  return std::nullopt;
}

}  // namespace mkernel::base
