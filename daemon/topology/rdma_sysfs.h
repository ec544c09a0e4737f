// Reads the RDMA devices of a node out of sysfs.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "daemon/topology/rdma_device.h"

namespace mkernel::topology {

/// Every RDMA device that the kernel shows, by name; none where there is no RDMA. What cannot be read stays
/// as it is by default: inside containers half of these files answer EINVAL. `root` is "/" but for tests.
/// Any thread; some hundred small reads per port.
std::vector<RdmaDevice> rdma_devices(const std::filesystem::path& root = "/");

/// The same of one device; nothing when there is none of that name.
std::optional<RdmaDevice> rdma_device(const std::string& name, const std::filesystem::path& root = "/");

}  // namespace mkernel::topology
