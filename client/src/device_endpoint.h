// An endpoint for kernels of the session's GPU, with the lanes, rings and memory that it takes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "client/src/buffer.h"
#include "client/src/group.h"
#include "kernels/cuda/launch/endpoint.h"
#include "mkernel/client.h"

namespace mkernel::client {

class DeviceEndpointState {
 public:
  /// **Collective**. In order: ranks compare options, make the words of the node's barrier, take lanes and
  /// rings, and agree that all of them did; so counts stand still until the first kernel.
  static Result<std::unique_ptr<DeviceEndpointState>> create(std::shared_ptr<GroupCore> group,
                                                             const DeviceEndpointOptions& options);
  /// Gives back the lanes.
  ~DeviceEndpointState();
  const Home& home() const { return group_->home(); }

  const device::Endpoint& endpoint() const { return endpoint_->endpoint(); }
  Result<device::Peers> peers(const kernels::SymmetricView& buffer);
  /// Of the launches so far; an error fails the group.
  Status status();

 private:
  DeviceEndpointState(std::shared_ptr<GroupCore> group, std::uint32_t lanes)
      : group_(std::move(group)), lanes_(lanes) {}
  Status bind(const BufferState& workspace, const DeviceEndpointOptions& options);

  const std::shared_ptr<GroupCore> group_;
  const std::uint32_t lanes_;
  std::uint32_t first_lane_ = 0;
  bool has_lanes_ = false;
  std::unique_ptr<BufferState> workspace_;
  std::shared_ptr<kernels::EndpointOnDevice> endpoint_;  ///< last: it uses what is above
};

}  // namespace mkernel::client
