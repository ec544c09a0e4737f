#include "tests/conformance/gpu_wire.h"
#include "tests/conformance/tcp_wire.h"

namespace mkernel::test {

std::unique_ptr<Wire> make_wire() {
  return std::make_unique<GpuWire<TcpWire>>();
}

}  // namespace mkernel::test
