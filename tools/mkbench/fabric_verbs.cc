#include "tools/mkbench/fabric_verbs.h"

#include <utility>

#include "daemon/topology/rdma_device.h"
#include "daemon/topology/rdma_sysfs.h"
#include "daemon/transport/verbs/verbs.h"

namespace mkernel::bench {
namespace {

Result<transport::VerbsPort> choose_port(const std::string& wanted) {
  std::string why;
  for (const topology::RdmaDevice& device : topology::rdma_devices()) {
    for (const topology::RdmaPort& port : device.ports) {
      const std::string name = topology::port_name(device.name, port.number);
      if (!wanted.empty() && wanted != device.name && wanted != name) continue;
      const topology::Gid* const gid = topology::choose_gid(port, topology::AddressFamily::kIpv4);
      std::string trouble = topology::not_usable(device, port);
      if (trouble.empty() && gid == nullptr) trouble = "no GID";
      if (trouble.empty())
        return transport::VerbsPort{device.name, static_cast<std::uint8_t>(port.number), gid->index,
                                    gid->bytes};
      why += (why.empty() ? "" : "; ") + name + ": " + trouble;
    }
  }
  return Status(StatusCode::kFailedPrecondition,
                "no RDMA port" + (wanted.empty() ? "" : " " + wanted) +
                    " can be used: " + (why.empty() ? "the kernel shows none (see `mkctl devices`)" : why));
}

}  // namespace

Result<VerbsBench> open_verbs_bench(const std::string& wanted) {
  auto library = transport::rdma::open_verbs_library();
  if (!library.ok()) return library.status();
  auto port = choose_port(wanted);
  if (!port.ok()) return port.status();
  VerbsBench bench;
  bench.device = {port->device, port->number, port->gid_index};
  bench.make = [verbs = *library, port = *port](const transport::TransportOptions& base) {
    transport::VerbsOptions options;
    options.base = base;
    options.verbs = verbs;
    options.ports = {port};
    return transport::make_verbs(options);
  };
  return bench;
}

}  // namespace mkernel::bench
