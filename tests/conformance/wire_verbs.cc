#include "tests/conformance/verbs_wire.h"

namespace mkernel::test {

std::unique_ptr<Wire> make_wire() {
  return std::make_unique<VerbsWire>();
}

}  // namespace mkernel::test
