#include "daemon/app/rails.h"

#include <spdlog/spdlog.h>

#include <functional>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "daemon/app/efa_rails.h"
#include "daemon/app/verbs_rails.h"
#include "daemon/memory/gpu_module.h"
#include "daemon/transport/emulated/emulated.h"
#include "daemon/transport/tcp/tcp.h"
#include "proto/base/mutex.h"

namespace mkernel::app {
namespace {

transport::TransportOptions base_options(const config::Config& config, std::uint64_t boot_id) {
  return {{config.node.name, boot_id}, config.transport.peer_timeout, config.transport.reconnect_interval};
}

transport::ZeroCopy zero_copy(const std::string& word) {
  if (word == "never") return transport::ZeroCopy::kNever;
  return word == "always" ? transport::ZeroCopy::kAlways : transport::ZeroCopy::kAuto;
}

/// Null where the configuration asks for none.
Result<std::shared_ptr<memory::CopyEngines>> copy_engines(const config::Config& config) {
  if (!config.transport.gpu_memory) return std::shared_ptr<memory::CopyEngines>();
  auto engines = memory::open_copy_engines(memory::gpu_module_paths());
  if (!engines.ok()) return engines.status().with_context("transport.gpu_memory = true");
  return std::shared_ptr<memory::CopyEngines>(std::move(engines).value());
}

Result<std::unique_ptr<transport::Transport>> make_tcp(const config::Config& config, std::uint64_t boot_id,
                                                       std::uint32_t rail) {
  auto engines = copy_engines(config);
  if (!engines.ok()) return engines.status();
  const config::Tcp& tcp = config.transport.tcp;
  transport::TcpOptions options;
  options.base = base_options(config, boot_id);
  options.bind_address = tcp.bind;
  options.port = static_cast<std::uint16_t>(tcp.port == 0 ? 0 : tcp.port + rail);
  options.advertise = tcp.advertise;
  options.connections_per_peer = tcp.connections_per_peer;
  options.socket_buffer_bytes = tcp.socket_buffer_bytes;
  options.zero_copy = zero_copy(tcp.zero_copy);
  options.zero_copy_bytes = tcp.zero_copy_bytes;
  options.window = tcp.window;
  options.engines = std::move(engines).value();
  return transport::make_tcp(options);
}

Result<std::unique_ptr<transport::Transport>> make_emulated(const config::Config& config,
                                                            std::uint64_t boot_id, std::uint32_t rail) {
  auto engines = copy_engines(config);
  if (!engines.ok()) return engines.status();
  transport::EmulatedOptions options;
  options.base = base_options(config, boot_id);
  options.rail = rail;
  options.rails = config.proxy.threads;
  options.shape = link_shape(config.transport.emulated);
  options.seed = config.transport.emulated.seed + rail;
  options.engines = std::move(engines).value();
  return transport::make_emulated(options);
}

/// How the rails of one kind of transport are made.
struct Maker {
  std::function<Result<std::unique_ptr<transport::Transport>>(std::uint32_t rail)> make;
  RailPlaces places = {};
};

/// Of transports that have NICs.
template <typename NicRails>
Maker maker_of(NicRails made, const transport::TransportOptions& base) {
  const auto rails = std::make_shared<const NicRails>(std::move(made));
  return {[rails, base](std::uint32_t rail) { return rails->make(base, rail); }, rails->places()};
}

Result<Maker> maker_for(const config::Config& config, std::uint64_t boot_id) {
  if (config.transport.kind == "verbs") {
    auto rails = VerbsRails::open(config);
    if (!rails.ok()) return rails.status();
    return maker_of(std::move(*rails), base_options(config, boot_id));
  }
  if (config.transport.kind == "efa") {
    auto rails = EfaRails::open(config);
    if (!rails.ok()) return rails.status();
    return maker_of(std::move(*rails), base_options(config, boot_id));
  }
  const auto make = config.transport.kind == "emulated" ? make_emulated : make_tcp;
  return Maker{[&config, boot_id, make](std::uint32_t rail) { return make(config, boot_id, rail); }};
}

/// The answers of all rails to one question. Any thread.
class Answers {
 public:
  explicit Answers(std::size_t rails) : missing_(rails) {}
  /// With the last answer the first error of all; nothing before.
  std::optional<Status> add(const Status& status) {
    const MutexLock lock(mutex_);
    if (first_error_.ok()) first_error_ = status;
    if (--missing_ != 0) return std::nullopt;
    return first_error_;
  }

 private:
  Mutex mutex_;
  std::size_t missing_ MK_GUARDED_BY(mutex_);
  Status first_error_ MK_GUARDED_BY(mutex_);
};

dataplane::ProxyOptions proxy_options(const config::Proxy& proxy, std::uint32_t rail,
                                      const RailPlaces& places) {
  dataplane::ProxyOptions options;
  options.index = rail;
  options.count = proxy.threads;
  options.spin = proxy.spin;
  options.nap = proxy.nap;
  options.idle_after = proxy.idle_after;
  options.quantum_bytes = proxy.quantum_bytes;
  options.quantum_requests = proxy.quantum_requests;
  if (!proxy.cpus.empty()) {
    options.cpus = {proxy.cpus[rail]};
  } else if (!places.rails.empty()) {
    options.cpus = places.rails[rail].cpus;
  }
  options.not_pinned = [rail](const Status& why) { spdlog::warn("proxy thread {}: {}", rail, why.text()); };
  return options;
}

}  // namespace

transport::LinkShape link_shape(const config::Emulated& emulated) {
  return {emulated.bandwidth_gbytes, emulated.latency, emulated.drop, emulated.duplicate, emulated.reorder};
}

Result<std::unique_ptr<Rails>> Rails::create(const config::Config& config, std::uint64_t boot_id,
                                             dataplane::ControlSink& sink, memory::SleepWatch& sleep_watch) {
  auto make = maker_for(config, boot_id);
  if (!make.ok()) return make.status();
  auto rails = std::make_unique<Rails>();
  rails->places_ = make->places;
  for (std::uint32_t rail = 0; rail < config.proxy.threads; ++rail) {
    auto transport = make->make(rail);
    if (!transport.ok()) return transport.status().with_context("rail " + std::to_string(rail));
    rails->message_version_ = transport.value()->message_version();
    dataplane::ProxyOptions options = proxy_options(config.proxy, rail, rails->places_);
    options.sleep_watch = &sleep_watch;
    rails->proxies_.push_back(
        std::make_unique<dataplane::Proxy>(options, std::move(transport).value(), sink));
  }
  return rails;
}

void Rails::start() {
  for (const auto& proxy : proxies_) proxy->start();
}

void Rails::stop(std::chrono::milliseconds limit) {
  std::vector<std::jthread> waiting;
  for (const auto& proxy : proxies_) {
    waiting.emplace_back([&proxy, limit] { proxy->stop(limit); });
  }
}

std::vector<dataplane::Proxy*> Rails::proxies() const {
  std::vector<dataplane::Proxy*> all;
  for (const auto& proxy : proxies_) all.push_back(proxy.get());
  return all;
}

std::vector<std::string> Rails::endpoints() const {
  std::vector<std::string> all;
  for (const auto& proxy : proxies_) all.push_back(proxy->local_endpoint());
  return all;
}

Status Rails::connect_peer(const cluster::PeerInfo& peer) {
  if (peer.rails.size() != proxies_.size()) {
    return {StatusCode::kFailedPrecondition,
            "node " + peer.node + " has " + std::to_string(peer.rails.size()) + " rails, this node " +
                std::to_string(proxies_.size()) + ": proxy.threads must be the same on both"};
  }
  for (std::size_t rail = 0; rail < proxies_.size(); ++rail) {
    proxies_[rail]->connect_peer(peer.id, peer.rails[rail]);
  }
  return {};
}

void Rails::disconnect_peer(transport::PeerId peer) {
  for (const auto& proxy : proxies_) proxy->disconnect_peer(peer);
}

Status Rails::receive_from_peer(std::uint32_t rail, transport::PeerId peer, const std::string& message) {
  if (rail >= proxies_.size()) {
    return {StatusCode::kInvalidArgument, "message for the transport of rail " + std::to_string(rail) +
                                              ", there are " + std::to_string(proxies_.size())};
  }
  const auto bytes = std::as_bytes(std::span(message));
  proxies_[rail]->receive_from_peer(peer, {bytes.begin(), bytes.end()});
  return {};
}

void Rails::set_link(transport::PeerId peer, const transport::LinkShape& shape,
                     std::function<void(Status)> done) {
  const auto answers = std::make_shared<Answers>(proxies_.size());
  for (const auto& proxy : proxies_) {
    proxy->set_link(peer, shape, [answers, done](const Status& status) {
      if (const std::optional<Status> all = answers->add(status)) done(*all);
    });
  }
}

}  // namespace mkernel::app
