// Texts of others on their way into logs, tables and terminals.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "daemon/base/utf8.h"
#include "proto/base/printable.h"

namespace mkernel::base {

/// Whether a character has no glyph of its own, but changes how others are shown: control characters, those
/// that turn the direction of writing, separators of lines, and what Unicode calls
/// Default_Ignorable_Code_Point or Cf.
inline bool is_invisible(std::uint32_t character) {
  static constexpr std::pair<std::uint32_t, std::uint32_t> kRanges[] = {
      {0x00, 0x1f},       {0x7f, 0x9f},       {0xad, 0xad},       {0x34f, 0x34f},     {0x600, 0x605},
      {0x61c, 0x61c},     {0x6dd, 0x6dd},     {0x70f, 0x70f},     {0x890, 0x891},     {0x8e2, 0x8e2},
      {0x115f, 0x1160},   {0x17b4, 0x17b5},   {0x180b, 0x180f},   {0x200b, 0x200f},   {0x2028, 0x202e},
      {0x2060, 0x206f},   {0x3164, 0x3164},   {0xfe00, 0xfe0f},   {0xfeff, 0xfeff},   {0xffa0, 0xffa0},
      {0xfff0, 0xfffb},   {0x110bd, 0x110bd}, {0x110cd, 0x110cd}, {0x13430, 0x1345f}, {0x1bca0, 0x1bca3},
      {0x1d173, 0x1d17a}, {0xe0000, 0xe0fff}};
  return std::any_of(std::begin(kRanges), std::end(kRanges), [=](const auto& range) {
    return character >= range.first && character <= range.second;
  });
}

/// A text of several words keeps to one printable line of UTF-8: each character that is_invisible() becomes a
/// space, each byte that belongs to no character a question mark.
inline std::string one_line(std::string_view text) {
  const std::string valid = valid_utf8(text);
  std::string line;
  for (std::size_t at = 0; at < valid.size();) {
    const std::string_view rest = std::string_view(valid).substr(at);
    const std::size_t length = utf8_length(rest);
    line += is_invisible(utf8_code_point(rest)) ? std::string_view(" ") : rest.substr(0, length);
    at += length;
  }
  return line;
}

}  // namespace mkernel::base
