// The work rings of a session that kernels of its GPU write.
#pragma once

#include <memory>
#include <utility>

#include "kernels/cuda/endpoint/ring.h"
#include "kernels/cuda/memory/buffer.h"
#include "proto/abi/region_map.h"
#include "proto/abi/status.h"

namespace mkernel::kernels {

/// What the GPU has claimed of its rings, for as long as the session lasts: made once, it counts on for one
/// endpoint after the other. Kernels that write the rings must be over before it is destroyed.
class RingsOnDevice {
 public:
  /// On the device that is current. `segment` is registered with CUDA, stays the caller's and outlives this;
  /// nobody has written its rings of the GPU yet. Errors: CUDA's.
  static Result<std::shared_ptr<RingsOnDevice>> make(abi::SessionSegment& segment);
  RingsOnDevice(const RingsOnDevice&) = delete;
  RingsOnDevice& operator=(const RingsOnDevice&) = delete;

  const DeviceRings& rings() const { return device_rings_; }

 private:
  RingsOnDevice(abi::SessionSegment& segment, DeviceBuffer claims);

  const DeviceBuffer claims_;  ///< RingClaims by ring
  const DeviceRings device_rings_;
};

}  // namespace mkernel::kernels
