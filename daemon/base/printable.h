// Texts of others on their way into logs, tables and terminals.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "daemon/base/utf8.h"
#include "proto/base/printable.h"

namespace mkernel::base {

/// Whether the character (a code point) changes the direction of what follows, begins a line or cannot be
/// seen: with these a text can look like another one.
inline bool is_deceptive(std::uint32_t character) {
  return character == 0x061c || (character >= 0x200b && character <= 0x200f) ||
         (character >= 0x2028 && character <= 0x202e) || (character >= 0x2060 && character <= 0x206f) ||
         character == 0xfeff;
}

/// A text of several words keeps to one printable line of UTF-8: each control character, of C0 and of C1, and
/// each that deceives the reader becomes spaces, each byte that belongs to no character a question mark.
inline std::string one_line(std::string_view text) {
  std::string line = valid_utf8(text);
  for (std::size_t at = 0; at < line.size();) {
    const std::size_t length = std::max<std::size_t>(utf8_length(std::string_view(line).substr(at)), 1);
    const auto byte = [&](std::size_t i) {
      return static_cast<std::uint32_t>(static_cast<unsigned char>(line[at + i]));
    };
    const std::uint32_t character = length == 1   ? byte(0)
                                    : length == 2 ? (byte(0) & 0x1f) << 6 | (byte(1) & 0x3f)
                                    : length == 3
                                        ? (byte(0) & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f)
                                        : 0x10000;  // above all that matters here
    const bool control = character < 0x20 || (character >= 0x7f && character < 0xa0);
    if (control || is_deceptive(character))
      std::fill_n(line.begin() + static_cast<std::ptrdiff_t>(at), length, ' ');
    at += length;
  }
  return line;
}

}  // namespace mkernel::base
