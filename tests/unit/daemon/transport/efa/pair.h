// Two EFA transports over fake NICs.
#pragma once

#include <doctest/doctest.h>

#include "tests/conformance/efa_wire.h"
#include "tests/support/text.h"

namespace mkernel::test {

inline nic::Fabric& fabric_of(TransportPair& pair) {
  return dynamic_cast<EfaWire&>(pair.wire()).fabric();
}

inline std::string device_of(const std::string& host, int i) {
  return EfaWire::device(host, i);
}

}  // namespace mkernel::test
