// What plays GPU memory, copied by engines that are late and out of step: the contract must hold with copies
// in flight at every moment.
#pragma once

#include <cstdint>
#include <memory>

#include "proto/abi/region_map.h"
#include "tests/support/fake_engines.h"

namespace mkernel::test {

/// The wire of a transport, `Base`, over regions of GPU memory.
template <class Base>
class GpuWire : public Base {
 public:
  abi::RegionKind memory_kind() const override { return abi::RegionKind::kVmm; }

 private:
  std::shared_ptr<memory::CopyEngines> make_engines() override {
    return std::make_shared<FakeEngines>(++seed_, 40);
  }

  std::uint64_t seed_ = 0;
};

}  // namespace mkernel::test
