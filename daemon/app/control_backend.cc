// What mkctl sees and does, and the reload that SIGHUP and mkctl share.
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <utility>

#include "daemon/app/app.h"
#include "daemon/observe/log.h"
#include "daemon/topology/rdma_sysfs.h"
#include "daemon/transport/rdma/probe.h"

namespace mkernel::app {
namespace {

/// For the configuration file and the names in it, while `mkctl reload` waits.
constexpr std::chrono::seconds kReadWithin{5};

}  // namespace

rpc::DaemonSnapshot App::daemon() const {
  rpc::DaemonSnapshot seen;
  seen.node = config_.node.name;
  seen.pid = ::getpid();
  seen.boot_id = boot_id_;
  seen.uptime_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - since_).count();
  seen.transports = {config_.transport.kind};
  seen.proxies = config_.proxy.threads;
  seen.ports = ports_;
  for (const cluster::PeerSnapshot& peer : peers()) {
    if (peer.state == "alive") {
      if (const std::string problem = paths_.problem(peer.node); !problem.empty()) {
        seen.problems.push_back(problem);
      }
      continue;
    }
    seen.problems.push_back("peer " + (peer.node.empty() ? peer.address : peer.node) + " is " + peer.state +
                            (peer.reason.empty() ? "" : ": " + peer.reason));
  }
  seen.slices.emplace_back("control", slices_.times());
  for (const dataplane::Proxy* proxy : rails_->proxies()) {
    seen.slices.emplace_back("mk-proxy-" + std::to_string(seen.slices.size() - 1), proxy->slices());
  }
  seen.log_lines_dropped_total = observe::dropped_log_lines();
  seen.log_lines_left_out_total = sessions_->left_out_lines_total();
  if (stopping_) seen.problems.push_back("the daemon is stopping");
  return seen;
}

void App::add_rates(std::vector<session::SessionSnapshot>& sessions) const {
  const auto now = session::RateBook::Clock::now();
  for (session::SessionSnapshot& session : sessions) rates_.fill(session, now);
}

std::vector<cluster::PeerSnapshot> App::peers() const {
  auto peers = links_->peers();
  for (cluster::PeerSnapshot& peer : peers) {
    if (!peer.node.empty()) peer.rails = paths_.rails(peer.node);
  }
  return peers;
}

std::vector<topology::RdmaDevice> App::devices() const {
  auto devices = topology::rdma_devices();
  transport::rdma::probe(devices);
  return devices;
}

namespace {

/// `down` of the whole link, or of the wire of one rail. Plugging in the link plugs in every wire.
Status set_down(transport::LinkShape& shape, const rpc::LinkChange& change, std::uint32_t rails) {
  if (!change.rail.has_value()) {
    if (change.down.has_value()) shape.down = *change.down;
    if (!change.down.value_or(true)) shape.rails_down = 0;
    return {};
  }
  if (*change.rail >= rails || !change.down.has_value()) {
    return {StatusCode::kInvalidArgument,
            "rail " + std::to_string(*change.rail) +
                (change.down.has_value() ? ": there are " + std::to_string(rails) + " (proxy.threads)"
                                         : " alone can be set down or up; the rest concerns every rail")};
  }
  const std::uint64_t bit = std::uint64_t{1} << *change.rail;
  shape.rails_down = *change.down ? shape.rails_down | bit : shape.rails_down & ~bit;
  return {};
}

}  // namespace

void App::set_link(const std::string& peer, const rpc::LinkChange& change,
                   std::function<void(Result<transport::LinkShape>)> done) {
  std::string known;
  for (auto& [id, alive] : alive_) {
    known += (known.empty() ? "" : ", ") + alive.node;
    if (alive.node != peer) continue;
    transport::LinkShape shape = alive.shape;
    shape.bandwidth_gbytes = change.bandwidth_gbytes.value_or(shape.bandwidth_gbytes);
    shape.latency = change.latency.value_or(shape.latency);
    shape.drop = change.drop.value_or(shape.drop);
    shape.duplicate = change.duplicate.value_or(shape.duplicate);
    shape.reorder = change.reorder.value_or(shape.reorder);
    if (const Status set = set_down(shape, change, config_.proxy.threads); !set.ok()) return done(set);
    alive.shape = shape;
    return rails_->set_link(id, shape, [done = std::move(done), shape](const Status& status) {
      done(status.ok() ? Result<transport::LinkShape>(shape) : Result<transport::LinkShape>(status));
    });
  }
  done(Status(StatusCode::kNotFound,
              "no peer \"" + peer + "\" is alive; alive are: " + (known.empty() ? "none" : known)));
}

bool App::counts_arrived_bytes() const {
  return rails_->proxies().front()->capabilities().counts_bytes;
}

/// The file may lie on a server that hangs, and names of users be asked of one: both are read on another
/// thread. Who asks while it reads gets a reading that began later.
void App::reload(ReloadDone done) {
  if (config_.file.empty()) {
    return done(
        Status(StatusCode::kFailedPrecondition, "this daemon was started without a configuration file"));
  }
  if (!reading_for_.empty()) return read_next_for_.push_back(std::move(done));
  reading_for_.push_back(std::move(done));
  read_configuration();
}

void App::read_configuration() {
  service_manager_.reloading();
  reader_.run<config::Config>(
      kReadWithin, [file = config_.file] { return config::load(file); },
      [this](const Result<config::Config>& fresh) { take_configuration(fresh); });
}

void App::take_configuration(const Result<config::Config>& fresh) {
  Result<rpc::ReloadSnapshot> outcome(fresh.status());
  if (!fresh.ok()) {
    spdlog::error("reload refused, everything stays as it was:\n{}", fresh.status().text());
    service_manager_.ready("reload refused, see the log");
  } else {
    const config::Reload change = config::reload(config_, fresh.value());
    outcome = rpc::ReloadSnapshot{change.applied, change.needs_restart, apply(change)};
    service_manager_.ready("reloaded");
  }
  const auto waiting = std::exchange(reading_for_, std::exchange(read_next_for_, {}));
  for (const ReloadDone& done : waiting) done(outcome);
  if (!reading_for_.empty()) read_configuration();
}

/// What the operator should know of it, beyond the keys themselves.
std::vector<std::string> App::apply(const config::Reload& change) {
  const config::Config before = std::exchange(config_, change.config);
  std::vector<std::string> notes;
  observe::set_log_level(config_.log.level);
  sessions_->set_limits(config_.limits, config_.users);
  if (config_.peers.list != before.peers.list) {
    const std::set<std::string> unlisted = links_->unlisted();
    const Status listening = links_->set_static_peers(config_.peers.list);
    if (!listening.ok()) spdlog::error("peers of the new peers.list cannot come in: {}", listening.text());
    for (const std::string& peer : links_->admits_all() ? links_->unlisted() : std::set<std::string>()) {
      if (unlisted.count(peer) != 0) continue;
      notes.push_back(peer + " is no longer in peers.list, but stays: " +
                      (config_.peers.open ? "peers.open lets everybody in" : "its certificate admits it"));
    }
  }
  if (config_.transport.emulated != before.transport.emulated) {
    for (auto& [id, alive] : alive_) {
      const auto was = std::exchange(alive.shape, link_shape(config_.transport.emulated));
      alive.shape.down = was.down;
      alive.shape.rails_down = was.rails_down;
      rails_->set_link(id, alive.shape, [node = alive.node](const Status& status) {
        if (!status.ok()) spdlog::error("link to {}: {}", node, status.text());
      });
    }
  }
  spdlog::info("{} read again: {} keys taken over, {} need a restart", config_.file, change.applied.size(),
               change.needs_restart.size());
  for (const std::string& line : change.applied) spdlog::info("reloaded {}", line);
  for (const std::string& line : change.needs_restart) spdlog::warn("needs a restart: {}", line);
  for (const std::string& line : notes) spdlog::warn("{}", line);
  return notes;
}

}  // namespace mkernel::app
