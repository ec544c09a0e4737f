// Texts of others on their way into protobuf messages, whose receivers refuse a message, and the stream that
// it came by, for one byte that is no UTF-8.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace mkernel::base {

/// Bytes of the character that begins `text`, 0 when it begins with none: RFC 3629, so without surrogates,
/// over-long forms and what lies beyond U+10FFFF.
inline std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (text.empty()) return 0;
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  if (first < 0xc2 || first > 0xf4) return 0;
  const std::size_t length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (text.size() < length) return 0;
  // The second byte has the narrower range where the first one alone says too little.
  const unsigned char low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const unsigned char high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  if (byte(1) < low || byte(1) > high) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xbf) return 0;
  }
  return length;
}

/// The number of the character that begins `text`; utf8_length() of it is not 0.
inline std::uint32_t utf8_code_point(std::string_view text) {
  const std::size_t length = utf8_length(text);
  const auto byte = [&](std::size_t i) { return std::uint32_t{static_cast<unsigned char>(text[i])}; };
  std::uint32_t character = length == 1 ? byte(0) : byte(0) & (0xffU >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) character = character << 6 | (byte(i) & 0x3f);
  return character;
}

/// The text with a '?' for each byte that belongs to no character.
inline std::string valid_utf8(std::string_view text) {
  std::string valid(text);
  for (std::size_t at = 0; at < valid.size();) {
    const std::size_t length = utf8_length(std::string_view(valid).substr(at));
    if (length == 0) valid[at] = '?';
    at += std::max<std::size_t>(length, 1);
  }
  return valid;
}

}  // namespace mkernel::base
