// The memory behind a device::Endpoint, and what became of the launches that used it; the work rings of a
// session that kernels of its GPU write.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/base/views.h"
#include "kernels/cuda/launch/state.h"
#include "kernels/cuda/memory/buffer.h"
#include "mkernel/device_endpoint.h"
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

struct EndpointOnDeviceOptions {
  std::uint32_t first_lane = 0;  ///< of the group's
  std::uint32_t lanes = 1;
  std::uint64_t deadline_ns = 0;
};

/// Counts start where the lanes' counts stand when it is made: every rank of the group must have made its own
/// before any rank puts. The segments of group and session are registered with CUDA by whoever owns them. One
/// thread at a time; belongs to the device that was current when it was made.
class EndpointOnDevice {
 public:
  /// Bytes of symmetric GPU memory, zeroed, that the barrier of a node takes on every rank.
  static std::uint64_t workspace_bytes(std::uint32_t world_size) { return 8 * std::uint64_t{world_size}; }

  /// `group` outlives it, as does the memory of `workspace`. Errors: CUDA's.
  static Result<std::unique_ptr<EndpointOnDevice>> make(const GroupView& group,
                                                        std::shared_ptr<RingsOnDevice> rings,
                                                        const SymmetricView& workspace,
                                                        const EndpointOnDeviceOptions& options);

  const device::Endpoint& endpoint() const { return endpoint_; }
  /// The addresses of `buffer` in a table that lives as long as this.
  Result<device::Peers> peers(const SymmetricView& buffer);
  /// Once the stream is done: OK, or the first wait of a launch that gave up, and why.
  Status status() const;

 private:
  EndpointOnDevice(const GroupView& group, std::shared_ptr<RingsOnDevice> rings, int device);
  Status fill(const SymmetricView& workspace, const EndpointOnDeviceOptions& options);

  const GroupView& group_;
  const std::shared_ptr<RingsOnDevice> rings_;
  const int device_;
  std::vector<DeviceBuffer> buffers_;
  device::Endpoint endpoint_;
  LaunchStateReader state_;
};

}  // namespace mkernel::kernels
