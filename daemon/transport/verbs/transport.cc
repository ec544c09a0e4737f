#include "daemon/transport/verbs/transport.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "daemon/topology/rdma_device.h"
#include "daemon/transport/rdma/dma_buf.h"
#include "proto/abi/work_request.h"

namespace mkernel::transport::verbs {
namespace {

constexpr const char* kName = "verbs transport";

Status check(const VerbsOptions& options) {
  const auto wrong = [](const std::string& what) {
    return Status{StatusCode::kInvalidArgument, "verbs transport: " + what};
  };
  if (options.ports.empty()) return wrong("no port to use");
  if (options.ports.size() > rdma::kMaxPaths) return wrong(std::to_string(options.ports.size()) + " ports");
  if (options.qps_per_peer < 1 || options.qps_per_peer > 64) return wrong("qps_per_peer must be 1 to 64");
  if (options.send_queue < 64) return wrong("send_queue must be at least 64");
  if (options.window < 1 || options.window > kMaxWindow) return wrong("window must be 1 to 32767");
  if (options.max_inline < 8) return wrong("max_inline must be at least 8: counts are sent inline");
  if (options.timeout < 1 || options.timeout > 31)
    return wrong("timeout must be 1 to 31: others wait for ever");
  if (!std::has_single_bit(options.chunk_bytes) || options.chunk_bytes < 4096) return wrong("chunk_bytes");
  if (options.retry_count > 7) return wrong("retry_count must be 0 to 7");
  return {};
}

Status require_dma_bufs(const rdma::VerbsLibrary& verbs, const Path& path) {
  const auto takes = rdma::takes_dma_bufs(verbs, path.pd());
  if (!takes.ok()) return takes.status().with_context(path.text());
  if (takes.value()) return {};
  return {StatusCode::kFailedPrecondition,
          path.text() +
              " takes no dma-bufs, so it cannot reach GPU memory: a newer kernel or driver does, or set "
              "transport.gpu_memory = false"};
}

}  // namespace

VerbsTransport::VerbsTransport(const VerbsOptions& options) {
  context_.options = options;
  capabilities_.name = "verbs";
  capabilities_.publishes = true;
  capabilities_.counts_bytes = false;
  capabilities_.gpu_memory = options.gpu_memory;
  capabilities_.max_put_bytes = abi::kMaxPutBytes;
  capabilities_.max_in_flight_puts = options.window;
}

Result<std::unique_ptr<VerbsTransport>> VerbsTransport::make(const VerbsOptions& options) {
  MK_RETURN_IF_ERROR(check(options));
  std::unique_ptr<VerbsTransport> made(new VerbsTransport(options));
  MK_RETURN_IF_ERROR(made->make_registrar(kName));
  Context& context = made->context_;
  for (const VerbsPort& port : options.ports) {
    auto path = Path::open(context.options, port, context.registrar.get());
    if (!path.ok()) return path.status();
    made->endpoint_ += (made->endpoint_.empty() ? "" : ", ") + topology::port_name(port.device, port.number);
    if (options.gpu_memory) MK_RETURN_IF_ERROR(require_dma_bufs(options.verbs, **path));
    context.paths.push_back(std::move(*path));
  }
  MK_RETURN_IF_ERROR(made->make_events(kName));
  return made;
}

void VerbsTransport::quiesce(ChannelId channel) {
  const End end = end_of(channel);
  if (end.outbound != nullptr) end.peer->sender.quiesce(*end.outbound);
  if (end.inbound != nullptr) end.peer->receiver.quiesce(*end.inbound);
}

bool VerbsTransport::quiet(ChannelId channel) const {
  const End end = end_of(channel);
  if (end.outbound != nullptr) return !end.outbound->in_flight();
  if (end.inbound == nullptr) return true;
  // Its keys may be among those that still go, and who closes it expects that they have gone.
  return end.inbound->path == nullptr &&
         std::none_of(context_.paths.begin(), context_.paths.end(),
                      [](const auto& path) { return path->registrations().any_leaving(); });
}

bool VerbsTransport::holds(const memory::Region& region) const {
  const auto leaving = [&](const auto& path) { return path->registrations().leaving(region); };
  return std::any_of(context_.paths.begin(), context_.paths.end(), leaving) || PeerTransport::holds(region);
}

void VerbsTransport::forget(const memory::Region& region) {
  for (const auto& path : context_.paths) path->registrations().forget(region);
}

bool VerbsTransport::look_at_paths(Time now) {
  const Status broken(StatusCode::kUnavailable, "the device reported an error of the queue pair");
  bool any = false;
  for (std::uint32_t local = 0; local < context_.paths.size(); ++local) {
    Path& path = *context_.paths[local];
    const Path::News news = path.take_events();
    if (!news.changed && news.broken.empty()) continue;
    any = true;
    for_each_peer([&](Peer& peer) {
      if (news.changed) {
        peer.sender.path_changed(local, now);
        peer.receiver.path_changed(path);
      }
      for (const Path::News::BrokenQueue& queue : news.broken) {
        peer.sender.queue_broken(queue.qpn, broken, now);
        peer.receiver.queue_broken(queue);
      }
    });
  }
  return any;
}

}  // namespace mkernel::transport::verbs

namespace mkernel::transport {

Result<std::unique_ptr<Transport>> make_verbs(const VerbsOptions& options) {
  auto made = verbs::VerbsTransport::make(options);
  if (!made.ok()) return made.status();
  return std::unique_ptr<Transport>(std::move(*made));
}

}  // namespace mkernel::transport
