#include "daemon/transport/efa/transport.h"

#include <algorithm>
#include <utility>

#include "proto/abi/work_request.h"

namespace mkernel::transport::efa {
namespace {

constexpr const char* kName = "EFA transport";

Status check(const EfaOptions& options) {
  const auto wrong = [](const std::string& what) {
    return Status{StatusCode::kInvalidArgument, "EFA transport: " + what};
  };
  if (options.window < 1 || options.window > kMaxWindow) return wrong("window must be 1 to 32767");
  if (options.credit < 1 || options.credit > 65536) return wrong("credit must be 1 to 65536");
  if (options.send_queue != 0 && options.send_queue < 16) return wrong("send_queue must be at least 16");
  if (options.service_level > 15) return wrong("service_level must be 0 to 15");
  return options.devices.size() <= rdma::kMaxPaths ? Status() : wrong("more than 64 devices");
}

}  // namespace

EfaTransport::EfaTransport(const EfaOptions& options) {
  context_.options = options;
  capabilities_.name = "efa";
  capabilities_.gpu_memory = options.gpu_memory;
  capabilities_.counts_bytes = false;
  capabilities_.max_put_bytes = abi::kMaxPutBytes;
  capabilities_.max_in_flight_puts = options.window;
}

/// All at the start: what cannot be used is refused by name before anything relies on it, and opening costs
/// little. What costs much, queue pairs, address handles and registrations, is made when a route needs it.
Result<std::unique_ptr<EfaTransport>> EfaTransport::make(const EfaOptions& options) {
  MK_RETURN_IF_ERROR(check(options));
  std::unique_ptr<EfaTransport> made(new EfaTransport(options));
  MK_RETURN_IF_ERROR(made->make_registrar(kName));
  if (options.devices.empty()) MK_RETURN_IF_ERROR(made->open_device(""));
  for (const std::string& name : options.devices) MK_RETURN_IF_ERROR(made->open_device(name));
  MK_RETURN_IF_ERROR(made->make_events(kName));
  return made;
}

Status EfaTransport::open_device(const std::string& name) {
  auto device = Device::open(context_.options, name);
  if (!device.ok()) return device.status().with_context(kName);
  const Abilities& can = (*device)->abilities();
  // Without unsolicited receives the peer's puts and acknowledgements consume posted ones.
  EfaOptions& kept = context_.options;
  if (!can.unsolicited) kept.credit = std::min(kept.credit, can.receive_queue / 2);
  if (kept.gpu_memory && !can.dma_buf) {
    return {StatusCode::kFailedPrecondition, "transport.gpu_memory = true: " + (*device)->name() +
                                                 " takes no dma-bufs: its driver or the kernel is too old"};
  }
  capabilities_.max_put_bytes = std::min(capabilities_.max_put_bytes, can.max_put_bytes);
  endpoint_ += (endpoint_.empty() ? "" : ", ") + (*device)->name();
  context_.paths.push_back(std::move(*device));
  return {};
}

void EfaTransport::forget(const memory::Region& region) {
  for_each_peer([&](Peer& peer) { peer.forget(region); });
}

bool EfaTransport::look_at_paths(Time now) {
  bool changed = false;
  for (std::uint32_t local = 0; local < context_.paths.size(); ++local) {
    const Device::News news = context_.paths[local]->take_events();
    if (!news.changed) continue;
    changed = true;
    for_each_peer([&](Peer& peer) { peer.device_changed(local, news, now); });
  }
  if (changed) fail_without_devices();
  return changed;
}

/// A dead device never comes back: where all are dead there is nothing to wait for.
void EfaTransport::fail_without_devices() {
  if (!std::all_of(context_.paths.begin(), context_.paths.end(),
                   [](const auto& device) { return device->dead(); })) {
    return;
  }
  for_each_peer([&](Peer& peer) {
    fail(peer, {StatusCode::kUnavailable, "no EFA device is left here: " + peer.why_lost()}, true);
  });
}

}  // namespace mkernel::transport::efa

namespace mkernel::transport {

Result<std::unique_ptr<Transport>> make_efa(const EfaOptions& options) {
  auto made = efa::EfaTransport::make(options);
  if (!made.ok()) return made.status();
  return std::unique_ptr<Transport>(std::move(*made));
}

}  // namespace mkernel::transport
