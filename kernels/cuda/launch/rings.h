// The work rings of a session while kernels of its GPU write them.
#pragma once

#include <memory>
#include <vector>

#include "kernels/base/views.h"
#include "kernels/cuda/endpoint/ring.h"
#include "kernels/cuda/memory/buffer.h"
#include "proto/abi/status.h"

namespace mkernel::kernels {

/// While it lives all rings are claimed on the GPU, and threads of the CPU are refused. Rings are handed over
/// all together: a lane's ring is its number modulo their count, so a rule by ring would be a rule about lane
/// numbers that nobody chooses. Kernels that write them must be over before it is destroyed.
class RingsOnDevice {
 public:
  /// Hands over. The rings' memory is registered with CUDA; `rings` stay the caller's and outlive this. On
  /// the device that is current. Errors: kFailedPrecondition (they are on the GPU already), CUDA's.
  static Result<std::shared_ptr<RingsOnDevice>> take(const abi::SessionSegment& segment,
                                                     std::vector<RingView> rings);
  /// Gives the rings back, at the positions that the GPU has reached.
  ~RingsOnDevice();
  RingsOnDevice(const RingsOnDevice&) = delete;
  RingsOnDevice& operator=(const RingsOnDevice&) = delete;

  const DeviceRings& rings() const { return device_rings_; }

 private:
  RingsOnDevice(const abi::SessionSegment& segment, std::vector<RingView> rings, DeviceBuffer claims,
                int device);

  const std::vector<RingView> host_rings_;
  const DeviceBuffer claims_;  ///< RingClaims by ring
  const int device_;
  DeviceRings device_rings_;
};

}  // namespace mkernel::kernels
