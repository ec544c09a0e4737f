#include "tests/conformance/efa_wire.h"

namespace mkernel::test {

std::unique_ptr<Wire> make_wire() {
  return std::make_unique<EfaWire>();
}

}  // namespace mkernel::test
