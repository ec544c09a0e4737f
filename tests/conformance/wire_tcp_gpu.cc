// What plays GPU memory, copied by engines that are late and out of step: the contract must hold with copies
// in flight at every moment.
#include "tests/conformance/tcp_wire.h"
#include "tests/support/fake_engines.h"

namespace mkernel::test {
namespace {

class GpuWire final : public TcpWire {
 public:
  abi::RegionKind memory_kind() const override { return abi::RegionKind::kVmm; }

 private:
  std::shared_ptr<memory::CopyEngines> make_engines() override {
    return std::make_shared<FakeEngines>(++seed_, 40);
  }

  std::uint64_t seed_ = 0;
};

}  // namespace

std::unique_ptr<Wire> make_wire() {
  return std::make_unique<GpuWire>();
}

}  // namespace mkernel::test
