// Two EFA transports over fake NICs.
#pragma once

#include <doctest/doctest.h>

#include "tests/conformance/efa_wire.h"

namespace mkernel::test {

inline nic::Fabric& fabric_of(TransportPair& pair) {
  return dynamic_cast<EfaWire&>(pair.wire()).fabric();
}

inline std::string device_of(const std::string& host, int i) {
  return EfaWire::device(host, i);
}

inline auto always(std::uint32_t length) {
  return [length](std::uint64_t) { return length; };
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace mkernel::test
