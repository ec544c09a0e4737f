// Two verbs transports with two devices each.
#pragma once

#include <doctest/doctest.h>

#include "tests/conformance/verbs_wire.h"
#include "tests/support/text.h"

namespace mkernel::test {

inline nic::Fabric& fabric_of(TransportPair& pair) {
  return dynamic_cast<VerbsWire&>(pair.wire()).fabric();
}

inline std::string device_of(const std::string& host, int i) {
  return VerbsWire::device(host, i);
}

}  // namespace mkernel::test
