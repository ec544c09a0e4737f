#include "daemon/transport/rdma/probe.h"

#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <string>

#include "daemon/transport/rdma/dma_buf.h"

namespace mkernel::transport::rdma {
namespace {

using OpenDevice = std::unique_ptr<ibv_context, std::function<void(ibv_context*)>>;

std::string unknown(const std::string& what, int error) {
  return "unknown: " + what + ": " + std::strerror(error);
}

/// Null with errno.
OpenDevice open(const VerbsLibrary& verbs, const std::string& name) {
  int count = 0;
  ibv_device** const list = verbs.get_device_list(&count);
  ibv_context* opened = nullptr;
  int error = list == nullptr ? errno : ENODEV;
  for (int i = 0; i < count && list != nullptr; ++i) {
    if (name != verbs.get_device_name(list[i])) continue;
    opened = verbs.open_device(list[i]);
    error = errno;
  }
  if (list != nullptr) verbs.free_device_list(list);
  errno = error;
  return {opened, [&verbs](ibv_context* context) { verbs.close_device(context); }};
}

std::string dma_buf(const VerbsLibrary& verbs, ibv_context* context) {
  ibv_pd* const pd = verbs.alloc_pd(context);
  if (pd == nullptr) return unknown("no protection domain", errno);
  const auto takes = takes_dma_bufs(verbs, pd);
  verbs.dealloc_pd(pd);
  if (!takes.ok()) return "unknown: " + takes.status().text();
  return takes.value() ? "yes" : "no";
}

}  // namespace

void probe(const VerbsLibrary& verbs, std::vector<topology::RdmaDevice>& devices) {
  for (topology::RdmaDevice& device : devices) {
    const OpenDevice context = open(verbs, device.name);
    if (context == nullptr) {
      device.dma_buf = unknown("the device does not open", errno);
      continue;
    }
    device.dma_buf = dma_buf(verbs, context.get());
    for (topology::RdmaPort& port : device.ports) {
      ibv_port_attr attributes{};
      const auto number = static_cast<std::uint8_t>(port.number);
      if (verbs.query_port(context.get(), number, &attributes) != 0) continue;
      port.mtu = 128U << attributes.active_mtu;  // IBV_MTU_256 is 1
    }
  }
}

void probe(std::vector<topology::RdmaDevice>& devices) {
  if (devices.empty()) return;
  static const Result<VerbsLibrary> library = open_verbs_library();
  if (library.ok()) return probe(library.value(), devices);
  for (topology::RdmaDevice& device : devices) device.dma_buf = "unknown: " + library.status().text();
}

}  // namespace mkernel::transport::rdma
