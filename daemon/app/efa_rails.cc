#include "daemon/app/efa_rails.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "daemon/topology/machine.h"
#include "daemon/topology/placement.h"
#include "daemon/topology/rdma_sysfs.h"

namespace mkernel::app {
namespace {

constexpr const char* kAsked = "transport.kind = \"efa\"";

Status no_device(const topology::Node& node) {
  std::string why;
  const auto add = [&why](const std::string& name, const std::string& what) {
    why += (why.empty() ? "" : "; ") + name + ": " + what;
  };
  for (const topology::NicPort& port : node.ports) {
    if (port.driver != "efa") {
      add(port.name(), "no EFA (driver " + (port.driver.empty() ? "unknown" : port.driver) + ")");
    } else {
      add(port.name(), port.not_usable.empty() ? "no GPU is near enough" : port.not_usable);
    }
  }
  for (const std::string& name : node.absent) add(name, "not in this node");
  return {StatusCode::kFailedPrecondition,
          std::string(kAsked) + ": no EFA device can be used: " +
              (why.empty() ? "the kernel shows no RDMA device (see `mkctl devices`)" : why)};
}

}  // namespace

Result<std::vector<std::string>> efa_devices(const topology::Node& node) {
  std::vector<std::string> devices;
  for (const topology::Rail& rail : topology::place(node).rails) {
    const topology::NicPort& port = node.ports[rail.port];
    if (port.driver == "efa") devices.push_back(port.device);
  }
  if (devices.empty()) return no_device(node);
  return devices;
}

std::vector<std::string> efa_paths(const topology::Node& node, const std::vector<std::string>& own,
                                   std::uint32_t rail, std::uint32_t rails, std::uint32_t paths) {
  const std::size_t first = rail % own.size();
  const auto place_of = [&](const std::string& device) {
    return std::find_if(node.ports.begin(), node.ports.end(),
                        [&](const topology::NicPort& port) { return port.device == device; })
        ->place;
  };
  const topology::PciPlace here = place_of(own[first]);
  std::vector<std::tuple<topology::Distance, bool, std::size_t, std::string>> others;
  for (const topology::NicPort& port : node.ports) {
    if (port.driver != "efa" || !port.not_usable.empty() || port.device == own[first]) continue;
    const auto number =
        static_cast<std::size_t>(std::find(own.begin(), own.end(), port.device) - own.begin());
    const std::size_t turn = number < own.size() ? (number + own.size() - first) % own.size() : 0;
    others.emplace_back(topology::distance(here, port.place), number < rails && number < own.size(), turn,
                        port.device);
  }
  std::sort(others.begin(), others.end());
  std::vector<std::string> chosen{own[first]};
  for (const auto& other : others) {
    if (chosen.size() < paths) chosen.push_back(std::get<std::string>(other));
  }
  return chosen;
}

Result<EfaRails> EfaRails::open(const config::Config& config) {
  const auto verbs = transport::rdma::open_verbs_library();
  if (!verbs.ok()) return verbs.status().with_context(kAsked);
  const auto efa = transport::rdma::open_efa_library();
  if (!efa.ok()) return efa.status().with_context(kAsked);
  const auto machine = topology::this_machine();
  if (!machine.ok()) return machine.status();
  const topology::Node node =
      topology::make_node(machine.value(), topology::rdma_devices(), config.topology.nics);
  auto devices = efa_devices(node);
  if (!devices.ok()) return devices.status();

  EfaRails rails;
  std::vector<std::string> ports;
  for (std::uint32_t rail = 0; rail < devices->size(); ++rail) {
    rails.paths_.push_back(efa_paths(node, *devices, rail, config.proxy.threads, config.transport.efa.paths));
    ports.push_back(topology::port_name((*devices)[rail], 1));  // EFA devices have one
  }
  rails.places_ = places_of(node, ports, config.proxy.threads);
  transport::EfaOptions& options = rails.options_;
  options.verbs = verbs.value();
  options.efa = efa.value();
  options.gpu_memory = config.transport.gpu_memory;
  options.window = config.transport.efa.window;
  options.credit = config.transport.efa.credit;
  options.send_queue = config.transport.efa.send_queue;
  options.service_level = static_cast<std::uint8_t>(config.transport.efa.service_level);
  return rails;
}

Result<std::unique_ptr<transport::Transport>> EfaRails::make(const transport::TransportOptions& base,
                                                             std::uint32_t rail) const {
  transport::EfaOptions options = options_;
  options.base = base;
  options.devices = paths_[rail % paths_.size()];
  return transport::make_efa(options);
}

}  // namespace mkernel::app
