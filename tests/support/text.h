// What tests ask of messages.
#pragma once

#include <string>

namespace mkernel::test {

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace mkernel::test
