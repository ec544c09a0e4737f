// Texts of others on their way into logs, tables and terminals.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace mkernel::base {

/// Names are printable ASCII, so that no terminal takes one for a command.
inline bool is_printable(std::string_view name) {
  return std::all_of(name.begin(), name.end(), [](unsigned char c) { return c >= 0x20 && c <= 0x7e; });
}

/// A text of several words keeps to one printable line: each control character, of C0 and of C1 in UTF-8,
/// becomes a space.
inline std::string one_line(std::string_view text) {
  std::string line(text);
  for (std::size_t i = 0; i < line.size(); ++i) {
    const auto byte = static_cast<unsigned char>(line[i]);
    const auto after = i + 1 < line.size() ? static_cast<unsigned char>(line[i + 1]) : 0U;
    if (byte < 0x20 || byte == 0x7f) line[i] = ' ';
    if (byte == 0xc2 && after >= 0x80 && after < 0xa0) line[i] = line[i + 1] = ' ';
  }
  return line;
}

}  // namespace mkernel::base
