// RDMA devices of this node and their ports.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/topology/gid.h"

namespace mkernel::topology {

enum class LinkLayer { kInfiniband, kEthernet, kOther };

const char* name_of(LinkLayer layer);

struct RdmaPort {
  std::uint32_t number = 1;
  std::string state;           ///< "ACTIVE", "DOWN", "INIT", ...
  std::string physical_state;  ///< "LinkUp", "Disabled", "Polling", ...
  LinkLayer link_layer = LinkLayer::kOther;
  std::uint32_t mtu = 0;  ///< in force, bytes; 0 = unknown: sysfs does not say
  double gbps = 0;        ///< gigabits per second
  std::uint32_t lid = 0;  ///< InfiniBand
  std::vector<Gid> gids;  ///< without empty slots, by index
};

/// The file through which programs open a device.
struct DeviceFile {
  std::string path;  ///< "/dev/infiniband/uverbs0"; empty: the kernel offers none
  int error = 0;     ///< errno of trying to open it for reading and writing, 0 = may be opened
};

struct RdmaDevice {
  std::string name;         ///< "mlx5_0"
  std::string driver;       ///< "mlx5_core", "efa"; soft devices describe themselves: "rxe"
  std::string firmware;     ///< empty where there is none
  std::string pci_address;  ///< "0000:19:00.0", empty for soft devices
  int numa_node = -1;       ///< -1 = unknown
  std::string dma_buf = "unknown: the device was not opened";  ///< or "yes", "no": GPU memory by dma-buf
  DeviceFile file;
  std::vector<RdmaPort> ports;
};

/// The GID to use on a port: InfiniBand has its first, RoCE the one choose_roce_gid() chooses. Null when the
/// port has none.
const Gid* choose_gid(const RdmaPort& port, AddressFamily wanted);

/// What a port is called everywhere: "mlx5_0:1".
inline std::string port_name(const std::string& device, std::uint32_t number) {
  return device + ":" + std::to_string(number);
}

/// Why the port cannot carry puts, and what to do about it; empty = it can.
std::string not_usable(const RdmaDevice& device, const RdmaPort& port);

}  // namespace mkernel::topology
