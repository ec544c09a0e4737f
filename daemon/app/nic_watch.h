// The NIC ports of this node's rails, looked at now and then: what peers are told of them.
#pragma once

#include <chrono>
#include <functional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "daemon/topology/rdma_device.h"
#include "mkernel/v1/peer.pb.h"

namespace mkernel::app {

/// What peers are told of these ports, "mlx5_0:1", by rail. One that is not there any more is in state
/// "absent". The address is the one that rails choose for a port of its kind; `family` as they are given it.
std::vector<v1::NicPort> describe_ports(const std::vector<std::string>& names,
                                        const std::vector<topology::RdmaDevice>& devices,
                                        topology::AddressFamily family);

/// A thread of its own, as looking takes tens of milliseconds: calls `told`, on that thread, with what `look`
/// has found, at once and then as often as `every`.
class NicWatch {
 public:
  using Look = std::function<std::vector<v1::NicPort>()>;
  using Told = std::function<void(std::vector<v1::NicPort>)>;

  NicWatch(Look look, std::chrono::milliseconds every, Told told);

 private:
  void run(const std::stop_token& stop, std::chrono::milliseconds every) const;

  const Look look_;
  const Told told_;
  std::jthread thread_;  ///< last: stops and joins before the rest goes
};

}  // namespace mkernel::app
