#include "tools/mkctl/text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <ostream>
#include <sstream>

namespace mkernel::mkctl {
namespace {

/// Of a character of several bytes, all but the first.
bool continues(char c) {
  return (static_cast<unsigned char>(c) & 0xc0) == 0x80;
}

}  // namespace

std::string fixed(double value, int digits) {
  char text[48];
  std::snprintf(text, sizeof(text), "%.*f", digits, value);
  return text;
}

std::string scaled(double value, bool bytes) {
  const double step = bytes ? 1024 : 1000;
  static constexpr const char* kUnits[2][5] = {{"", "k", "M", "G", "T"}, {"B", "KiB", "MiB", "GiB", "TiB"}};
  const char* const* units = kUnits[bytes ? 1 : 0];
  int unit = 0;
  for (; std::abs(value) >= step && unit < 4; ++unit) value /= step;
  std::string text = fixed(value, unit == 0 && value == std::floor(value) ? 0 : 1);
  if (*units[unit] != 0) text.append(" ").append(units[unit]);
  return text;
}

std::string span(double seconds) {
  if (seconds < 10) return fixed(seconds, 1) + " s";
  if (seconds < 120) return fixed(seconds, 0) + " s";
  if (seconds < 120 * 60) return fixed(seconds / 60, 0) + " min";
  if (seconds < 48 * 3600) return fixed(seconds / 3600, 0) + " h";
  return fixed(seconds / 86400, 0) + " d";
}

std::size_t columns_of(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return !continues(c); }));
}

std::string cut(const std::string& text, std::size_t columns) {
  std::string kept;
  const bool fits = columns_of(text) <= columns;
  std::size_t used = 0;
  for (const char c : text) {
    if (!continues(c) && ++used > columns - (fits ? 0 : 1)) break;
    const auto byte = static_cast<unsigned char>(c);
    kept += byte < 0x20 || byte == 0x7f ? '?' : c;
  }
  return fits ? kept : kept + "~";
}

std::vector<std::string> wrapped(const std::string& text, std::size_t columns) {
  std::vector<std::string> lines;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const bool first = lines.empty();
    if (!first && columns_of(lines.back()) + 1 + columns_of(word) <= columns) {
      lines.back() += " " + word;
    } else {
      lines.push_back(cut((first ? "" : "    ") + word, columns));
    }
  }
  return lines;
}

void print_aligned(std::ostream& out, const std::vector<std::vector<std::string>>& lines) {
  if (lines.empty()) return;
  std::vector<std::vector<std::string>> clean = lines;
  std::vector<std::size_t> width(lines[0].size(), 0);
  for (auto& line : clean) {
    for (std::size_t c = 0; c < line.size(); ++c) {
      line[c] = cut(line[c], std::numeric_limits<std::size_t>::max());
      width[c] = std::max(width[c], columns_of(line[c]));
    }
  }
  for (const auto& line : clean) {
    for (std::size_t c = 0; c < line.size(); ++c) {
      out << line[c];
      const bool last = c + 1 == line.size();
      out << (last ? "\n" : std::string(width[c] + 2 - columns_of(line[c]), ' '));
    }
  }
}

}  // namespace mkernel::mkctl
