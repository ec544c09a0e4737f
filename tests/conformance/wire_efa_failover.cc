// Two devices at each end: most cuts leave a route, and traffic moves.
#include "tests/conformance/efa_wire.h"

namespace mkernel::test {

std::unique_ptr<Wire> make_wire() {
  return std::make_unique<EfaWire>(2);
}

}  // namespace mkernel::test
