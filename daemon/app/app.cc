#include "daemon/app/app.h"

#include <spdlog/spdlog.h>

#include <boost/asio/post.hpp>
#include <csignal>
#include <filesystem>
#include <random>
#include <system_error>
#include <utility>

#include "daemon/app/handler_loop.h"
#include "daemon/app/verbs_rails.h"
#include "daemon/base/safe_folder.h"
#include "daemon/observe/log.h"
#include "daemon/rpc/grpc_wire.h"
#include "daemon/topology/rdma_sysfs.h"
#include "daemon/transport/rdma/probe.h"

namespace mkernel::app {
namespace {

constexpr std::chrono::seconds kLookAtNics{30}, kLookAtRates{1}, kLookAtSockets{5};

std::uint64_t random_boot_id() {
  std::random_device device;
  std::uint64_t id = 0;
  while (id == 0) id = (std::uint64_t{device()} << 32) | device();
  return id;
}

session::ServerOptions server_options(const config::Config& config, std::uint64_t boot_id,
                                      const RailPlaces& places) {
  session::ServerOptions options;
  options.node_name = config.node.name;
  options.boot_id = boot_id;
  options.ring_slots = config.proxy.ring_slots;
  options.listener = {config.node.socket, config.node.mode_bits(), config.node.socket_group};
  options.limits = config.limits;
  options.users = config.users;
  options.rails_near = [places](std::uint64_t gpu) { return places.near(gpu); };
  return options;
}

}  // namespace

App::App(config::Config config)
    : config_(std::move(config)),
      boot_id_(random_boot_id()),
      signals_(io_),
      service_manager_(io_),
      reader_(io_, "reading " + config_.file),
      bridge_(io_),
      sleep_watch_(
          [this](std::uint64_t session, const Status& why) { bridge_.session_failed(session, why); }),
      executor_(io_),
      rate_timer_(io_),
      paths_(config_.proxy.threads) {}

App::~App() {
  take_down();
}

// ---- start

Status App::prepare_folders() const {
  const config::Node& node = config_.node;
  const std::string whose = "node.runtime_dir \"" + node.runtime_dir + "\"";
  MK_RETURN_IF_ERROR(base::make_folders(node.runtime_dir).with_context(whose + " cannot be made"));
  MK_RETURN_IF_ERROR(base::check_safe_folder(node.runtime_dir).with_context(whose));
  const auto check_socket = [](const std::string& key, const std::string& path) {
    const std::string folder = std::filesystem::path(path).parent_path();
    return base::check_safe_folder(folder.empty() ? "." : folder).with_context(key + " \"" + path + "\"");
  };
  MK_RETURN_IF_ERROR(check_socket("node.socket", node.socket));
  return check_socket("control.socket", config_.control.socket);
}

Status App::start() {
  signals_.add(SIGHUP);  // one that comes before the daemon is ready reloads then, and does not end it
  MK_RETURN_IF_ERROR(prepare_folders());
  auto rails = Rails::create(config_, boot_id_, bridge_, sleep_watch_);
  if (!rails.ok()) return rails.status();
  rails_ = std::move(rails).value();

  directory_ = std::make_unique<cluster::GroupDirectory>(config_.node.name, boot_id_, executor_);
  sessions_ = std::make_unique<session::SessionServer>(
      io_, server_options(config_, boot_id_, rails_->places()), rails_->proxies());
  sessions_->on_group_closed([this] { forget_dead_peers(); });
  bridge_.bind(*sessions_,
               {[this](std::uint32_t rail, transport::PeerId peer) {
                  if (const auto found = alive_.find(peer); found != alive_.end()) {
                    paths_.connected(found->second.node, rail);
                  }
                },
                [this](transport::PeerId peer, const Status& why) {
                  if (links_ != nullptr) links_->drop(peer, why);
                },
                [this](std::uint32_t rail, transport::PeerId peer, const std::string& path,
                       const Status& lost) { path_changed(rail, peer, path, lost); },
                [this](std::uint32_t rail, transport::PeerId peer, const std::vector<std::byte>& bytes) {
                  send_to_rail(rail, peer, bytes);
                }});
  rails_->start();
  sleep_watch_.start();
  MK_RETURN_IF_ERROR(open_peer_links());
  watch_nics();

  auto control = rpc::ControlService::start(io_, *this, config_.control.socket);
  if (!control.ok()) return control.status();
  control_ = std::move(control).value();

  MK_RETURN_IF_ERROR(sessions_->start(*directory_));
  for (const int signal : {SIGTERM, SIGINT, SIGXCPU}) signals_.add(signal);
  wait_for_signal();
  look_at_rates();
  socket_files_ =
      std::make_unique<SocketWatch>(io_, config_.node.runtime_dir, *sessions_, *control_, kLookAtSockets);
  service_manager_.ready("node " + config_.node.name + ", transport " + config_.transport.kind + ", " +
                         std::to_string(config_.proxy.threads) + " rails");
  spdlog::info("mkerneld on node {} is ready: sessions on {}, mkctl on {}, peers on {}", config_.node.name,
               config_.node.socket, config_.control.socket,
               links_->address().empty() ? "no port: there are none" : links_->address());
  return {};
}

void App::run() {
  run_handlers(io_, slices_);
}

Status App::open_peer_links() {
  const config::Peers& peers = config_.peers;
  cluster::PeerLinksOptions options;
  options.node = config_.node.name;
  options.boot_id = boot_id_;
  options.software_version = MKERNEL_VERSION;
  options.listen = peers.listen;
  options.advertise = peers.advertise;
  options.peers = peers.list;
  options.dns = peers.dns;
  options.dns_refresh = peers.dns_refresh;
  options.open = peers.open;
  options.time_scale = peers.time_scale;
  rpc::TlsFiles tls;
  tls.cert = peers.tls.cert;
  tls.key = peers.tls.key;
  tls.ca = peers.tls.ca;
  tls.server_name = peers.tls.server_name;
  options.certified = tls.enabled();
  options.shared_name = tls.server_name;
  options.transport = config_.transport.kind;
  options.endpoints = rails_->endpoints();
  options.rail_version = rails_->message_version();
  auto wire = rpc::make_grpc_wire(io_, tls, options.longest_patience(), options.listen);
  if (!wire.ok()) return wire.status();
  auto links = cluster::PeerLinks::start(io_, std::move(options), *this, std::move(wire).value());
  if (!links.ok()) return links.status();
  links_ = std::move(links).value();
  directory_->attach(*links_, *sessions_);
  return {};
}

/// Peers are told how the ports of the rails are.
void App::watch_nics() {
  std::vector<std::string> names;
  for (const RailPlace& place : rails_->places().rails) names.push_back(place.port);
  if (names.empty()) return;
  auto look = [names = std::move(names), family = gid_family(config_.transport.verbs)] {
    auto devices = topology::rdma_devices();
    transport::rdma::probe(devices);
    return describe_ports(names, devices, family);
  };
  nics_ = std::make_unique<NicWatch>(std::move(look), kLookAtNics, [this](std::vector<v1::NicPort> ports) {
    boost::asio::post(io_, [this, ports = std::move(ports)] {
      ports_ = ports;
      if (links_ != nullptr) links_->set_ports(ports_);
    });
  });
}

void App::look_at_rates() {
  rates_.look(sessions_->sessions(), session::RateBook::Clock::now());
  sessions_->log_left_out();
  rate_timer_.expires_after(kLookAtRates);
  rate_timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) look_at_rates();
  });
}

// ---- stop

void App::wait_for_signal() {
  signals_.async_wait([this](const boost::system::error_code& error, int signal) {
    if (error) return;
    wait_for_signal();
    // The kernel repeats SIGXCPU every second of processor time: that is no second request.
    if (signal == SIGXCPU && stopping_) return;
    if (signal != SIGHUP) return stop();
    reload([](const Result<rpc::ReloadSnapshot>&) {});  // which logs by itself what came of it
  });
}

void App::request_stop() {
  boost::asio::post(io_, [this] { stop(); });
}

void App::stop() {
  const Status why(StatusCode::kUnavailable, "mkerneld on node " + config_.node.name + " is stopping");
  if (std::exchange(stopping_, true)) {
    spdlog::warn("stopping at once: asked a second time");
    sessions_->end_all(why);
    return io_.stop();
  }
  spdlog::info("stopping: draining {} sessions for at most {} ms", sessions_->session_count(),
               config_.limits.drain.count());
  socket_files_.reset();
  service_manager_.stopping(config_.limits.drain + std::chrono::seconds(10));
  sessions_->stop(config_.limits.drain, why, [this] { io_.stop(); });
}

/// The reverse of start(), from wherever it had got to. The sessions are drained, or nobody waits for them.
void App::take_down() {
  socket_files_.reset();
  control_.reset();
  nics_.reset();
  links_.reset();
  bridge_.unbind();
  if (rails_ != nullptr) rails_->stop(std::chrono::milliseconds(0));
  sessions_.reset();
  directory_.reset();
  rails_.reset();
}

// ---- peers

void App::peer_up(const cluster::PeerInfo& peer) {
  if (const Status connected = rails_->connect_peer(peer); !connected.ok()) {
    spdlog::error("{}", connected.text());
    return links_->drop(peer.id, connected);
  }
  alive_[peer.id] = {peer.node, link_shape(config_.transport.emulated)};
  paths_.up(peer.node);
  directory_->peer_up(peer);
}

void App::peer_down(transport::PeerId peer, const Status& why) {
  const auto found = alive_.find(peer);
  if (found == alive_.end()) return;
  paths_.down(found->second.node);
  alive_.erase(found);
  directory_->peer_down(peer, why);
  dead_.insert(peer);
  forget_dead_peers();
}

void App::received(transport::PeerId peer, const v1::PeerMessage& message) {
  if (alive_.count(peer) == 0) return;
  if (!message.has_rail_message()) return directory_->received(peer, message);
  const auto& [rail, bytes] = std::pair(message.rail_message().rail(), message.rail_message().message());
  if (const Status status = rails_->receive_from_peer(rail, peer, bytes); !status.ok()) {
    links_->drop(peer, status);
  }
}

void App::path_changed(std::uint32_t rail, transport::PeerId peer, const std::string& path,
                       const Status& lost) {
  // Of a peer that is down the log has said so.
  if (const auto found = alive_.find(peer); found != alive_.end()) {
    paths_.changed(found->second.node, rail, path, lost);
  }
}

void App::send_to_rail(std::uint32_t rail, transport::PeerId peer, const std::vector<std::byte>& bytes) {
  if (links_ == nullptr) return;
  v1::PeerMessage message;
  message.mutable_rail_message()->set_rail(rail);
  message.mutable_rail_message()->set_message(bytes.data(), bytes.size());
  links_->send(peer, std::move(message));
}

void App::forget_dead_peers() {
  // A transport must not lose a peer before the channels to it are closed.
  std::erase_if(dead_, [this](transport::PeerId peer) {
    if (sessions_->uses_peer(peer)) return false;
    rails_->disconnect_peer(peer);
    return true;
  });
}

}  // namespace mkernel::app
