// The machine's part: files below /proc, /sys and /dev.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "daemon/base/printable.h"
#include "daemon/topology/rdma_sysfs.h"
#include "tools/mkctl/doctor/acs.h"
#include "tools/mkctl/doctor/gather.h"

namespace mkernel::mkctl::doctor {
namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string line_of(const fs::path& file) {
  std::string line;
  std::getline(std::ifstream(file), line);
  return line;
}

std::vector<fs::path> entries(const fs::path& folder) {
  std::error_code ignored;
  std::vector<fs::path> found;
  for (fs::directory_iterator at(folder, ignored), end; at != end; at.increment(ignored))
    found.push_back(at->path());
  std::sort(found.begin(), found.end());
  return found;
}

/// The rest of the line that starts with `name`; empty when there is none.
std::string after(const std::string& text, const std::string& name) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    if (text.compare(at, name.size(), name) == 0)
      return text.substr(at + name.size(), end - at - name.size());
    at = end + 1;
  }
  return {};
}

/// "  8388608   8388608  bytes" -> the first.
std::uint64_t limit(const std::string& columns) {
  const std::size_t start = columns.find_first_not_of(' ');
  if (start == std::string::npos) return 0;
  return columns.compare(start, 9, "unlimited") == 0 ? kUnlimited
                                                     : std::strtoull(columns.c_str() + start, nullptr, 10);
}

std::vector<std::string> daemons(const fs::path& root) {
  std::vector<std::string> found;
  for (const fs::path& process : entries(root / "proc")) {
    if (line_of(process / "comm") != "mkerneld") continue;
    std::string command = text_of(process / "cmdline");
    std::replace(command.begin(), command.end(), '\0', ' ');
    command.erase(command.find_last_not_of(" \n") + 1);
    found.push_back("pid " + process.filename().string() + ": " + base::one_line(command));
  }
  return found;
}

/// Without a daemon: what this process sees.
std::vector<Port> local_ports(const fs::path& root) {
  std::vector<Port> ports;
  for (const topology::RdmaDevice& device : topology::rdma_devices(root)) {
    for (const topology::RdmaPort& port : device.ports) {
      Port seen{topology::port_name(device.name, port.number), device.driver,
                topology::name_of(port.link_layer)};
      if (const topology::Gid* gid = topology::choose_gid(port, topology::AddressFamily::kIpv4)) {
        seen.gid = gid->text();
        seen.gid_type = topology::name_of(gid->type);
      }
      seen.not_usable = topology::not_usable(device, port);
      ports.push_back(std::move(seen));
    }
  }
  return ports;
}

bool is_gpu(const fs::path& device) {
  const std::string type = line_of(device / "class");
  return line_of(device / "vendor") == "0x10de" && (type == "0x030000" || type == "0x030200");
}

/// A PCI device's folder lies in that of the bridge it hangs from: everything in between is a bridge above
/// it.
void add_bridges_above(const fs::path& device, std::set<fs::path>& bridges) {
  std::error_code none;
  const fs::path folder = fs::canonical(device, none);
  if (none) return;
  for (fs::path up = folder.parent_path(); fs::exists(up / "class", none); up = up.parent_path())
    if (line_of(up / "class").starts_with("0x0604")) bridges.insert(up);
}

void read_pci(const fs::path& root, Facts& facts) {
  std::set<fs::path> bridges;
  for (const fs::path& device : entries(root / "sys/bus/pci/devices")) {
    if (!is_gpu(device)) continue;
    ++facts.gpus;
    add_bridges_above(device, bridges);
  }
  for (const fs::path& device : entries(root / "sys/class/infiniband"))
    add_bridges_above(device / "device", bridges);
  for (const fs::path& bridge : bridges) {
    const std::string config = text_of(bridge / "config");
    facts.bridges.push_back({bridge.filename(), acs_redirects({config.begin(), config.end()})});
  }
}

std::optional<HugePages> huge_pages(const fs::path& root) {
  const fs::path folder = root / "sys/kernel/mm/hugepages/hugepages-2048kB";
  const std::string total = line_of(folder / "nr_hugepages");
  if (total.empty()) return std::nullopt;
  return HugePages{std::strtoull(total.c_str(), nullptr, 10),
                   std::strtoull(line_of(folder / "free_hugepages").c_str(), nullptr, 10)};
}

}  // namespace

std::optional<Limits> limits_of(const fs::path& root, std::int64_t pid) {
  constexpr int kIpcLock = 14;  // CAP_IPC_LOCK
  const fs::path process = root / "proc" / std::to_string(pid);
  if (line_of(process / "comm") != "mkerneld") return std::nullopt;
  const std::string limits = text_of(process / "limits");
  if (limits.empty()) return std::nullopt;
  const std::string capabilities = after(text_of(process / "status"), "CapEff:");
  return Limits{limit(after(limits, "Max locked memory")), limit(after(limits, "Max open files")),
                (std::strtoull(capabilities.c_str(), nullptr, 16) >> kIpcLock & 1) != 0};
}

std::optional<MappedIds> ids_of(const fs::path& root, std::int64_t pid) {
  const fs::path process = root / "proc" / std::to_string(pid), kernel = root / "proc/sys/kernel";
  const std::string users = text_of(process / "uid_map"), groups = text_of(process / "gid_map");
  if (line_of(process / "comm") != "mkerneld" || users.empty() || groups.empty()) return std::nullopt;
  return MappedIds{{base::IdKind::kUser, users, text_of(kernel / "overflowuid")},
                   {base::IdKind::kGroup, groups, text_of(kernel / "overflowgid")}};
}

void gather_machine(const fs::path& root, Facts& facts) {
  if (facts.daemon.reached()) {
    facts.limits = limits_of(root, facts.daemon.pid);
    facts.ids = ids_of(root, facts.daemon.pid);
  } else {
    facts.ports = local_ports(root);
  }
  std::error_code ignored;
  facts.daemons = daemons(root);
  facts.infiniband_folder = fs::is_directory(root / "dev/infiniband", ignored);
  facts.gpu_driver = line_of(root / "proc/driver/nvidia/version");
  facts.peermem = fs::exists(root / "sys/module/nvidia_peermem", ignored);
  facts.kernel = line_of(root / "proc/sys/kernel/osrelease");
  facts.huge_pages = huge_pages(root);
  read_pci(root, facts);
}

}  // namespace mkernel::mkctl::doctor
