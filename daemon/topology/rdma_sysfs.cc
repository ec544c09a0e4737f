#include "daemon/topology/rdma_sysfs.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string>
#include <utility>

#include "proto/ipc/fd.h"

namespace mkernel::topology {
namespace {

namespace fs = std::filesystem;

/// First line, without blanks at its end; empty when it cannot be read. By system calls: a port may have a
/// thousand of these files, and a proxy thread reads them when its port has changed.
std::string line_of(const fs::path& file) {
  const ipc::UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  char text[256];
  const ssize_t bytes = fd.valid() ? ::read(fd.get(), text, sizeof(text)) : 0;
  std::string line(text, bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
  line.erase(std::min(line.find('\n'), line.size()));
  line.erase(line.find_last_not_of(" \t\r") + 1);
  return line;
}

/// "4: ACTIVE" -> "ACTIVE".
std::string after_colon(const std::string& text) {
  const std::size_t colon = text.find(": ");
  return colon == std::string::npos ? text : text.substr(colon + 2);
}

std::vector<fs::path> entries(const fs::path& folder) {
  std::error_code ignored;
  std::vector<fs::path> found;
  for (fs::directory_iterator at(folder, ignored), end; at != end; at.increment(ignored))
    found.push_back(at->path());
  std::sort(found.begin(), found.end());
  return found;
}

std::uint32_t number(const std::string& text, int base = 10) {
  return static_cast<std::uint32_t>(std::strtoul(text.c_str(), nullptr, base));
}

GidType gid_type(const std::string& text, LinkLayer layer) {
  if (text == "RoCE v2") return GidType::kRoceV2;
  if (text != "IB/RoCE v1") return GidType::kOther;
  return layer == LinkLayer::kEthernet ? GidType::kRoceV1 : GidType::kInfiniband;
}

std::vector<Gid> gids_of(const fs::path& port, LinkLayer layer) {
  std::vector<Gid> gids;
  for (const fs::path& entry : entries(port / "gids")) {
    const auto bytes = Gid::parse(line_of(entry));
    const std::string index = entry.filename();
    Gid gid{.index = number(index), .bytes = bytes.value_or(std::array<std::uint8_t, 16>{})};
    if (gid.empty()) continue;
    gid.type = gid_type(line_of(port / "gid_attrs/types" / index), layer);
    gid.interface = line_of(port / "gid_attrs/ndevs" / index);
    // An Ethernet port shows the addresses of other network namespaces too, but not what they belong to.
    if (layer == LinkLayer::kEthernet && gid.type == GidType::kOther) continue;
    gids.push_back(std::move(gid));
  }
  std::sort(gids.begin(), gids.end(), [](const Gid& a, const Gid& b) { return a.index < b.index; });
  return gids;
}

LinkLayer link_layer(const std::string& text) {
  if (text == "InfiniBand") return LinkLayer::kInfiniband;
  return text == "Ethernet" ? LinkLayer::kEthernet : LinkLayer::kOther;
}

RdmaPort port_at(const fs::path& folder) {
  RdmaPort port;
  port.number = number(folder.filename());
  port.state = after_colon(line_of(folder / "state"));
  port.physical_state = after_colon(line_of(folder / "phys_state"));
  port.link_layer = link_layer(line_of(folder / "link_layer"));
  port.gbps = std::strtod(line_of(folder / "rate").c_str(), nullptr);  // "400 Gb/sec (4X NDR)"
  port.lid = number(line_of(folder / "lid"), 16);
  port.gids = gids_of(folder, port.link_layer);
  return port;
}

/// The uverbs device of an RDMA device, and whether this process may open it.
DeviceFile device_file(const fs::path& root, const std::string& device) {
  for (const fs::path& entry : entries(root / "sys/class/infiniband_verbs")) {
    if (line_of(entry / "ibdev") != device) continue;
    const fs::path file = root / "dev/infiniband" / entry.filename();
    const bool opens = ::access(file.c_str(), R_OK | W_OK) == 0;
    return {"/dev/infiniband/" + entry.filename().string(), opens ? 0 : errno};
  }
  return {};
}

RdmaDevice device_at(const fs::path& root, const fs::path& folder) {
  RdmaDevice device;
  device.name = folder.filename();
  device.firmware = line_of(folder / "fw_ver");
  device.file = device_file(root, device.name);
  for (const fs::path& port : entries(folder / "ports")) device.ports.push_back(port_at(port));
  std::error_code ignored;
  const fs::path pci = fs::read_symlink(folder / "device", ignored);
  // Soft-RoCE sits on a network interface, its "parent"; what PCI device that has, if any, is not its own.
  if (pci.empty() || fs::exists(folder / "parent", ignored)) {
    device.driver = line_of(folder / "node_desc");
    return device;
  }
  device.pci_address = pci.filename();
  device.driver = fs::read_symlink(folder / "device/driver", ignored).filename();
  if (const std::string node = line_of(folder / "device/numa_node"); !node.empty())
    device.numa_node = std::atoi(node.c_str());
  return device;
}

}  // namespace

std::vector<RdmaDevice> rdma_devices(const fs::path& root) {
  std::vector<RdmaDevice> devices;
  for (const fs::path& folder : entries(root / "sys/class/infiniband"))
    devices.push_back(device_at(root, folder));
  return devices;
}

std::optional<RdmaDevice> rdma_device(const std::string& name, const fs::path& root) {
  std::error_code ignored;
  const fs::path folder = root / "sys/class/infiniband" / name;
  if (name.empty() || !fs::exists(folder, ignored)) return std::nullopt;
  return device_at(root, folder);
}

}  // namespace mkernel::topology
