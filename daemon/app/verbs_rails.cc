#include "daemon/app/verbs_rails.h"

#include <algorithm>
#include <string>
#include <utility>

#include "daemon/topology/machine.h"
#include "daemon/topology/placement.h"
#include "daemon/topology/rdma_sysfs.h"

namespace mkernel::app {
namespace {

using transport::VerbsPort;

Status no_port(const topology::Node& node) {
  std::string why;
  for (const topology::NicPort& port : node.ports) {
    why += (why.empty() ? "" : "; ") + port.name() + ": " +
           (port.not_usable.empty() ? "no GPU is near enough" : port.not_usable);
  }
  for (const std::string& name : node.absent) why += (why.empty() ? "" : "; ") + name + ": not in this node";
  return {StatusCode::kFailedPrecondition,
          "transport.kind = \"verbs\": no RDMA port can be used: " +
              (why.empty() ? "the kernel shows no RDMA device (see `mkctl devices`)" : why)};
}

std::vector<std::string> names_of(const std::vector<VerbsPort>& ports) {
  std::vector<std::string> names;
  for (const VerbsPort& port : ports) names.push_back(topology::port_name(port.device, port.number));
  return names;
}

}  // namespace

topology::AddressFamily gid_family(const config::Verbs& verbs) {
  return verbs.gid_family == "ipv6" ? topology::AddressFamily::kIpv6 : topology::AddressFamily::kIpv4;
}

std::optional<VerbsPort> choose_again(const VerbsPort& port, const std::vector<topology::RdmaDevice>& devices,
                                      topology::AddressFamily family) {
  for (const topology::RdmaDevice& device : devices) {
    if (device.name != port.device) continue;
    for (const topology::RdmaPort& found : device.ports) {
      if (found.number != port.number || !topology::not_usable(device, found).empty()) continue;
      const topology::Gid* const gid = topology::choose_gid(found, family);
      if (gid == nullptr) return std::nullopt;
      return VerbsPort{port.device, port.number, gid->index, gid->bytes};
    }
  }
  return std::nullopt;
}

Result<std::vector<VerbsPort>> rail_ports(const topology::Node& node,
                                          const std::vector<topology::RdmaDevice>& devices,
                                          topology::AddressFamily family) {
  std::vector<VerbsPort> ports;
  for (const topology::Rail& rail : topology::place(node).rails) {
    const topology::NicPort& port = node.ports[rail.port];
    const VerbsPort wanted{port.device, static_cast<std::uint8_t>(port.port), 0, {}};
    if (const auto chosen = choose_again(wanted, devices, family)) ports.push_back(*chosen);
  }
  if (ports.empty()) return no_port(node);
  return ports;
}

Result<VerbsRails> VerbsRails::open(const config::Config& config) {
  const config::Verbs& verbs = config.transport.verbs;
  auto library = transport::rdma::open_verbs_library();
  if (!library.ok()) return library.status().with_context("transport.kind = \"verbs\"");
  auto machine = topology::this_machine();
  if (!machine.ok()) return machine.status();
  const topology::AddressFamily family = gid_family(verbs);
  const auto devices = topology::rdma_devices();
  const topology::Node node = topology::make_node(*machine, devices, config.topology.nics);
  auto ports = rail_ports(node, devices, family);
  if (!ports.ok()) return ports.status();

  VerbsRails rails;
  rails.ports_ = std::move(*ports);
  rails.places_ = places_of(node, names_of(rails.ports_), config.proxy.threads);
  rails.paths_ = verbs.paths;
  transport::VerbsOptions& options = rails.options_;
  options.verbs = *library;
  options.choose_again = [family](const VerbsPort& port) {
    const auto device = topology::rdma_device(port.device);
    return device ? app::choose_again(port, {*device}, family) : std::nullopt;
  };
  options.gpu_memory = config.transport.gpu_memory;
  options.qps_per_peer = verbs.qps_per_peer;
  options.send_queue = verbs.send_queue;
  options.window = verbs.window;
  options.max_inline = verbs.max_inline;
  options.timeout = static_cast<std::uint8_t>(verbs.timeout);
  options.retry_count = static_cast<std::uint8_t>(verbs.retry_count);
  options.traffic_class = static_cast<std::uint8_t>(verbs.traffic_class);
  options.service_level = static_cast<std::uint8_t>(verbs.service_level);
  return rails;
}

Result<std::unique_ptr<transport::Transport>> VerbsRails::make(const transport::TransportOptions& base,
                                                               std::uint32_t rail) const {
  transport::VerbsOptions options = options_;
  options.base = base;
  for (std::size_t i = 0; i < std::min<std::size_t>(paths_, ports_.size()); ++i) {
    options.ports.push_back(ports_[(rail + i) % ports_.size()]);
  }
  return transport::make_verbs(options);
}

}  // namespace mkernel::app
