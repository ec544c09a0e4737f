// Lists in findings.
#pragma once

#include <string>
#include <type_traits>

namespace mkernel::mkctl::doctor {

/// "a, b, c": texts or numbers.
template <typename Range>
std::string joined(const Range& range) {
  std::string text;
  for (const auto& each : range) {
    if (!text.empty()) text += ", ";
    if constexpr (std::is_arithmetic_v<std::decay_t<decltype(each)>>) {
      text += std::to_string(each);
    } else {
      text += each;
    }
  }
  return text;
}

}  // namespace mkernel::mkctl::doctor
