// A daemon that is made up, behind a real control service, and the mkctl program that asks it.
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "daemon/rpc/control_service.h"

namespace mkernel::rpc {

/// A daemon of one session and one peer, and what a test changes about it.
class FakeDaemon final : public ControlBackend, public session::Inspector {
 public:
  const session::Inspector& inspector() const override { return *this; }
  void add_rates(std::vector<session::SessionSnapshot>& sessions) const override {
    for (session::SessionSnapshot& session : sessions) {
      session.idle_seconds = 90;
      session.sent_per_second = 2048;
      session.arrived_per_second = 0;
    }
  }
  DaemonSnapshot daemon() const override {
    DaemonSnapshot seen;
    seen.node = "nodeA";
    seen.pid = 4711;
    seen.boot_id = 0xabc;
    seen.transports = {"emulated"};
    seen.proxies = 2;
    seen.problems = problems;
    base::SliceTimes control{std::chrono::microseconds(2500), 0, std::chrono::milliseconds(40), 2};
    if (knows_sleep) {
      control.knows_sleep = true;
      control.longest_asleep = std::chrono::milliseconds(30);
      control.asleep_over_limit = 1;
    }
    seen.slices = {{"control", control},
                   {"mk-proxy-0", {std::chrono::milliseconds(12), 3, std::chrono::milliseconds(13), 3}}};
    seen.ports.resize(nic_rails);
    return seen;
  }
  std::vector<cluster::PeerSnapshot> peers() const override {
    cluster::PeerSnapshot peer;
    peer.address = "10.0.0.7:7600";
    peer.node = "nodeB";
    peer.state = "alive";
    peer.sent_total = 12;
    peer.rails = {{.rail = 0},
                  {.rail = 1, .paths_lost_total = 3, .down = true, .path = "x", .last_loss = "x: pulled"}};
    peer.transport = "1 x tcp";
    peer.clock = cluster::PeerClock::Estimate{-2500000, 500000};
    peer.ports.resize(1);
    peer.ports[0].set_name("mlx5_3:1");
    return {peer};
  }
  std::string config_text() const override { return "[node]\nname = \"nodeA\"  # default\n"; }
  std::vector<topology::RdmaDevice> devices() const override {
    topology::RdmaPort up{
        .state = "ACTIVE", .physical_state = "LinkUp", .link_layer = topology::LinkLayer::kEthernet};
    up.mtu = 4096;
    up.gids = {{.index = 3,
                .bytes = *topology::Gid::parse("0000:0000:0000:0000:0000:ffff:0a00:0107"),
                .type = topology::GidType::kRoceV2,
                .interface = "ens1"}};
    topology::RdmaPort down{.number = 2, .state = "DOWN", .physical_state = "Disabled"};
    return {
        {.name = "mlx5_0", .dma_buf = "yes", .file = {"/dev/infiniband/uverbs0", 0}, .ports = {up, down}}};
  }
  Result<topology::Machine> machine() const override {
    if (machine_unreadable) return Status(StatusCode::kInternal, "hwloc cannot read the machine");
    topology::PciDevice gpu{.address = "0000:1b:00.0", .vendor = 0x10de, .device_class = 0x0302};
    gpu.place = {0, {"pci0000:15", "0000:15:01.0"}};
    return topology::Machine{.numa_nodes = {{.index = 0, .package = 0, .cpus = {0, 1, 2, 5}}},
                             .devices = {gpu}};
  }
  std::vector<std::string> chosen_ports() const override { return chosen; }
  void set_link(const std::string& peer, const LinkChange& change,
                std::function<void(Result<transport::LinkShape>)> done) override {
    if (peer != "nodeB") return done(Status(StatusCode::kNotFound, "no peer \"" + peer + "\""));
    if (change.down && !change.rail) shape.down = *change.down;
    if (change.down && change.rail) shape.rails_down |= std::uint64_t{1} << *change.rail;
    if (change.latency) shape.latency = *change.latency;
    done(shape);
  }
  bool counts_arrived_bytes() const override { return counts_bytes; }
  void reload(ReloadDone done) override { done(Status(StatusCode::kInvalidArgument, "file:3: speling")); }

  session::Counts counts() const override { return {1, 0}; }
  std::vector<session::SessionSnapshot> sessions(session::ListCursor& at) const override {
    at.end = true;
    session::SessionSnapshot seen;
    seen.id = 7;
    seen.client_name = "train";
    seen.pid = 99;
    seen.launches_total = ~std::uint64_t{0};
    seen.fallbacks_total = 5;
    seen.counters.bytes_total = (std::uint64_t{1} << 53) + 1;  // more than a double holds
    return {seen};
  }
  std::vector<session::UserSnapshot> users() const override {
    session::UserSnapshot seen;
    seen.uid = 0;
    seen.sessions = 3;
    seen.fds = 17;
    seen.limits.max_sessions = 9;
    seen.refusals_total = 2;
    return {seen};
  }
  session::NodeUse node_use() const override { return {17, 900, 4, 49000, 1000, 8192}; }
  std::vector<session::GroupSnapshot> groups(session::ListCursor& at) const override {
    at.end = true;
    return {};
  }
  std::vector<session::RegionSnapshot> regions(session::ListCursor& at) const override {
    at.end = true;
    return {};
  }
  /// In parts of `part` channels.
  std::vector<session::ChannelSnapshot> channels(bool all, session::ListCursor& at) const override {
    ++asked_for_channels;
    std::vector<session::ChannelSnapshot> rows(std::min(part, (all ? all_channels : 1) - at.row));
    for (session::ChannelSnapshot& row : rows) row.lane = static_cast<std::uint32_t>(at.row++);
    at.end = at.row == (all ? all_channels : 1);
    return rows;
  }

  bool knows_sleep = true;
  std::uint64_t all_channels = 3, part = 2;
  mutable std::atomic<std::uint64_t> asked_for_channels{0};
  std::vector<std::string> problems;
  transport::LinkShape shape;
  std::atomic<bool> machine_unreadable = false;
  std::atomic<bool> counts_bytes = true;
  std::vector<std::string> chosen;
  std::size_t nic_rails = 0;
};

/// The daemon's control thread and its service on a socket of its own.
struct Served {
  Served() {
    char name[] = "/tmp/mkernel-control-XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    folder = name;
    socket = folder / "control.sock";
    auto started = ControlService::start(io, daemon, socket);
    REQUIRE(started.ok());
    service = std::move(started).value();
    thread = std::thread([this] { io.run(); });
  }
  ~Served() {
    io.stop();
    thread.join();
    service.reset();
    std::filesystem::remove_all(folder);
  }
  /// Changes the daemon where it may be changed.
  void change(const std::function<void(FakeDaemon&)>& what) {
    std::promise<void> done;
    boost::asio::post(io, [&] {
      what(daemon);
      done.set_value();
    });
    done.get_future().wait();
  }

  std::filesystem::path folder;
  std::string socket;
  FakeDaemon daemon;
  boost::asio::io_context io;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work{io.get_executor()};
  std::unique_ptr<ControlService> service;
  std::thread thread;
};

/// What a run of mkctl came to.
struct Run {
  int exit = -1;
  std::string output;  ///< stdout and stderr
};

Run mkctl(const std::string& socket, const std::string& arguments);

inline bool contains(const Run& run, const std::string& part) {
  return run.output.find(part) != std::string::npos;
}

}  // namespace mkernel::rpc
