#include "tests/conformance/emulated_wire.h"
#include "tests/conformance/gpu_wire.h"

namespace mkernel::test {
namespace {

class EmulatedGpuWire final : public GpuWire<EmulatedWire> {
 public:
  std::string name() const override { return "emulated, GPU memory"; }
};

}  // namespace

std::unique_ptr<Wire> make_wire() {
  return std::make_unique<EmulatedGpuWire>();
}

}  // namespace mkernel::test
