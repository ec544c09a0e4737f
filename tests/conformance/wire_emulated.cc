// Host memory, copied by the CPU.
#include "tests/conformance/emulated_wire.h"

namespace mkernel::test {

std::unique_ptr<Wire> make_wire() {
  return std::make_unique<EmulatedWire>();
}

}  // namespace mkernel::test
