#include "daemon/topology/rdma_device.h"

#include <cerrno>
#include <cstring>

namespace mkernel::topology {
namespace {

std::string file_not_usable(const DeviceFile& file) {
  if (file.path.empty()) return "the kernel offers it to no program: load the module ib_uverbs";
  if (file.error == 0) return {};
  if (file.error == ENOENT)
    return file.path + " is not there: a container must be given /dev/infiniband and its devices";
  if (file.error == EACCES || file.error == EPERM)
    return file.path +
           " may not be opened for reading and writing by this user: see its owner, its mode and "
           "the container's device rules";
  return file.path + ": " + std::strerror(file.error);
}

std::string port_not_usable(const RdmaPort& port) {
  const std::string state = "port is " + port.state + " (" + port.physical_state + ")";
  if (port.state == "ACTIVE") return {};
  if (port.state == "INIT" || port.state == "ARMED")
    return state + ": no subnet manager has brought it up, see opensm or the switch";
  if (port.physical_state == "Disabled") return state + ": it was taken down, ip link set its interface up";
  return state + ": see its cable and the switch";
}

}  // namespace

const char* name_of(LinkLayer layer) {
  switch (layer) {
    case LinkLayer::kInfiniband: return "InfiniBand";
    case LinkLayer::kEthernet: return "Ethernet";
    case LinkLayer::kOther: break;
  }
  return "other";
}

const Gid* choose_gid(const RdmaPort& port, AddressFamily wanted) {
  if (port.link_layer == LinkLayer::kEthernet) return choose_roce_gid(port.gids, wanted);
  return port.gids.empty() ? nullptr : &port.gids.front();
}

std::string not_usable(const RdmaDevice& device, const RdmaPort& port) {
  if (std::string why = file_not_usable(device.file); !why.empty()) return why;
  if (std::string why = port_not_usable(port); !why.empty()) return why;
  if (port.gids.empty())
    return "port has no GID that is visible here: its interface needs an IP address, and "
           "may live in another network namespace";
  return {};
}

}  // namespace mkernel::topology
