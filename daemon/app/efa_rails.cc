#include "daemon/app/efa_rails.h"

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
  rails.devices_ = std::move(*devices);
  for (const std::string& device : rails.devices_)
    rails.cpus_.push_back(topology::cpus_near(node, device, 1));
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
  options.device = devices_[rail % devices_.size()];
  return transport::make_efa(options);
}

}  // namespace mkernel::app
