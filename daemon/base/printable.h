// Texts of others on their way into logs, tables and terminals.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "daemon/base/utf8.h"

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

/// A text of several words keeps to one printable line of UTF-8: each control character, of C0 and of C1,
/// becomes a space, each byte that belongs to no character a question mark.
inline std::string one_line(std::string_view text) {
  std::string line = valid_utf8(text);
  for (std::size_t i = 0; i < line.size(); ++i) {
    const auto byte = static_cast<unsigned char>(line[i]);
    const auto after = i + 1 < line.size() ? static_cast<unsigned char>(line[i + 1]) : 0U;
    if (byte < 0x20 || byte == 0x7f) line[i] = ' ';
    if (byte == 0xc2 && after >= 0x80 && after < 0xa0) line[i] = line[i + 1] = ' ';
  }
  return line;
}

}  // namespace mkernel::base
