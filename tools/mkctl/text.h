// Numbers, times and columns for people.
#pragma once

#include <cstddef>
#include <iosfwd>
#include <string>
#include <vector>

namespace mkernel::mkctl {

std::string fixed(double value, int digits);
/// 1234567 -> "1.2 MiB" for bytes, "1.2 M" for other counts.
std::string scaled(double value, bool bytes);
/// "0.4 s", "12 s", "3 min", "5 h", "9 d".
std::string span(double seconds);

/// Columns that a terminal shows: of UTF-8, one for each character.
std::size_t columns_of(const std::string& text);
/// At most `columns` of them; ends in "~" where something was cut. What would move a terminal's cursor
/// becomes "?": names come from clients and peers.
std::string cut(const std::string& text, std::size_t columns);
/// Lines of at most `columns`, broken at spaces; all but the first are indented by four.
std::vector<std::string> wrapped(const std::string& text, std::size_t columns);

/// Aligned columns, two spaces apart.
void print_aligned(std::ostream& out, const std::vector<std::vector<std::string>>& lines);

}  // namespace mkernel::mkctl
