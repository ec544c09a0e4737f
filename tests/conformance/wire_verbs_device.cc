#include <cstdlib>

#include "tests/conformance/verbs_device_wire.h"

namespace mkernel::test {

std::unique_ptr<Wire> make_wire() {
  const char* const device = std::getenv("MKERNEL_RDMA_DEVICE");
  REQUIRE_MESSAGE(device != nullptr, "MKERNEL_RDMA_DEVICE must name a device of `mkctl devices`");
  return std::make_unique<VerbsDeviceWire>(device);
}

}  // namespace mkernel::test
