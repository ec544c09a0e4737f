#include "tests/conformance/tcp_wire.h"

namespace mkernel::test {

std::unique_ptr<Wire> make_wire() {
  return std::make_unique<TcpWire>();
}

}  // namespace mkernel::test
