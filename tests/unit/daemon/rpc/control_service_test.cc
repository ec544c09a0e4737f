// The control service and the mkctl program against a daemon that is made up: exit codes, tables, JSON, a
// stuck daemon.
#include "daemon/rpc/control_service.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>

namespace mkernel::rpc {
namespace {

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
    seen.slices = {{"control", {std::chrono::microseconds(2500), 0}},
                   {"mk-proxy-0", {std::chrono::milliseconds(12), 3}}};
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
  Result<ReloadSnapshot> reload() override { return Status(StatusCode::kInvalidArgument, "file:3: speling"); }

  std::vector<session::SessionSnapshot> sessions() const override {
    session::SessionSnapshot seen;
    seen.id = 7;
    seen.client_name = "train";
    seen.pid = 99;
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
  std::vector<session::GroupSnapshot> groups() const override { return {}; }
  std::vector<session::RegionSnapshot> regions() const override { return {}; }
  std::vector<session::ChannelSnapshot> channels(bool all) const override {
    return std::vector<session::ChannelSnapshot>(all ? 3 : 1);
  }

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

struct Run {
  int exit = -1;
  std::string output;  ///< stdout and stderr
};

Run mkctl(const std::string& socket, const std::string& arguments) {
  const std::string command = std::string(MKCTL_PROGRAM) + " --socket " + socket + " " + arguments + " 2>&1";
  FILE* pipe = ::popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  Run run;
  char buffer[4096];
  for (std::size_t bytes; (bytes = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;)
    run.output.append(buffer, bytes);
  const int status = ::pclose(pipe);
  run.exit = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return run;
}

bool contains(const Run& run, const std::string& part) {
  return run.output.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("every table says first which daemon answers") {
  Served served;
  for (const std::string table : {"status", "sessions", "users", "peers", "groups", "regions", "channels",
                                  "devices", "topo", "config"}) {
    CAPTURE(table);
    const Run run = mkctl(served.socket, table);
    CHECK(run.exit == 0);
    const std::string first = run.output.substr(0, run.output.find('\n'));
    for (const std::string& part :
         {std::string("nodeA"), std::string("4711"), std::string("abc"), served.socket}) {
      CHECK(first.find(part) != std::string::npos);
    }
  }
  CHECK(contains(mkctl(served.socket, "config"), "name = \"nodeA\"  # default"));
  CHECK(contains(mkctl(served.socket, "groups"), "(none)"));
}

TEST_CASE("JSON has the fields of control.proto and exact numbers") {
  Served served;
  const auto json = [&](const std::string& arguments) {
    const Run run = mkctl(served.socket, arguments + " -o json");
    REQUIRE(run.exit == 0);
    return nlohmann::json::parse(run.output);
  };
  const auto users = json("users");
  CHECK(users["users"][0]["uid"] == 0);
  CHECK(users["users"][0]["name"] == "root");  // of this machine
  CHECK(users["users"][0]["fds"] == 17);
  CHECK(users["users"][0]["max_sessions"] == 9);
  CHECK(users["users"][0]["refusals_total"] == 2);
  CHECK(users["node"]["mappings_limit"] == 49000);
  const auto sessions = json("sessions");
  CHECK(sessions["daemon"]["node"] == "nodeA");
  CHECK(sessions["sessions"][0]["bytes_total"].get<std::uint64_t>() == (std::uint64_t{1} << 53) + 1);
  CHECK(sessions["sessions"][0]["client_name"] == "train");
  CHECK(sessions["sessions"][0]["idle_seconds"] == 90.0);
  CHECK(sessions["sessions"][0]["bytes_per_second"] == 2048.0);
  CHECK(json("peers")["peers"][0]["state"] == "alive");
  const auto peer = json("peers")["peers"][0];
  CHECK(peer["sent_total"] == 12);
  CHECK(peer["paths_lost_total"] == 3);
  REQUIRE(peer["rails"].size() == 2);
  CHECK(peer["rails"][1] == nlohmann::json{{"rail", 1},
                                           {"paths_lost_total", 3},
                                           {"down", true},
                                           {"path", "x"},
                                           {"last_loss", "x: pulled"},
                                           {"connected", false},
                                           {"waiting_seconds", 0.0}});
  CHECK(peer["transport"] == "1 x tcp");
  CHECK(peer["clock_offset_ms"] == -2.5);
  CHECK(peer["round_trip_ms"] == 0.5);
  CHECK(peer["ports"][0]["name"] == "mlx5_3:1");
  CHECK(json("peers")["transport"] == "2 x emulated");
  CHECK(json("status")["status"]["healthy"] == true);
  CHECK(json("status")["status"]["transports"][0] == "emulated");
  CHECK(json("status")["status"]["longest_slice_ms"] == 12.0);
  CHECK(json("status")["status"]["slices_over_limit"] == 3);
  CHECK(json("status")["status"]["slices"][0]["thread"] == "control");
  CHECK(json("status")["status"]["slices"][0]["longest_ms"] == 2.5);
  CHECK(json("groups")["groups"].empty());
  CHECK(json("channels")["channels"].size() == 1);
  CHECK(json("channels --all")["channels"].size() == 3);
}

TEST_CASE("by default a table has what one looks for, with -o wide all fields") {
  Served served;
  const Run brief = mkctl(served.socket, "sessions"), wide = mkctl(served.socket, "sessions -o wide");
  REQUIRE(brief.exit == 0);
  REQUIRE(wide.exit == 0);
  for (const std::string column : {"STATE", "USER", "NAME", "IDLE", "BYTES/S"})
    CHECK(contains(brief, column));
  for (const std::string value : {"idle", "root", "train", "90 s", "2.0 KiB"}) CHECK(contains(brief, value));
  CHECK_FALSE(contains(brief, "STALL_NANOSECONDS"));
  for (const std::string column : {"STALL_NANOSECONDS", "IDLE_SECONDS", "BYTES/S"})
    CHECK(contains(wide, column));
  const Run peers = mkctl(served.socket, "peers");
  CHECK(contains(peers, "degraded"));
  CHECK(contains(peers, "nodeB: rail 0 is not connected; rail 1 was lost: x: pulled"));
  CHECK(contains(mkctl(served.socket, "channels"), "PUTS/S"));
}

TEST_CASE("bytes that nobody counts are left out, instead of being 0") {
  Served served;
  served.daemon.counts_bytes = false;
  const auto json = nlohmann::json::parse(mkctl(served.socket, "sessions -o json").output);
  CHECK(json.at("sessions").at(0).at("arrived_bytes_total").is_null());
  CHECK(json.at("sessions").at(0).at("arrived_bytes_per_second").is_null());
  CHECK(json.at("sessions").at(0).at("arrivals_total") == 0);
  CHECK(mkctl(served.socket, "sessions").exit == 0);
  served.daemon.counts_bytes = true;
  const auto counted = nlohmann::json::parse(mkctl(served.socket, "sessions -o json").output);
  CHECK(counted.at("sessions").at(0).at("arrived_bytes_total") == 0);
  CHECK(counted.at("sessions").at(0).at("arrived_bytes_per_second") == 0.0);
}

TEST_CASE("a wire that is pulled is in the link's row") {
  Served served;
  const Run run = mkctl(served.socket, "link --peer nodeB --rail 2 --down");
  CHECK(run.exit == 0);
  CHECK_MESSAGE(contains(run, "rails_down"), run.output);
  CHECK(served.daemon.shape.rails_down == 4);
}

TEST_CASE("devices: a row per port, its GID or why it cannot be used") {
  Served served;
  const Run run = mkctl(served.socket, "devices -o json");
  REQUIRE(run.exit == 0);
  const auto ports = nlohmann::json::parse(run.output)["devices"];
  REQUIRE(ports.size() == 2);
  CHECK(ports[0]["device"] == "mlx5_0");
  CHECK(ports[0]["gid"] == "::ffff:10.0.1.7");
  CHECK(ports[0]["gid_index"] == 3);
  CHECK(ports[0]["gids"][0]["type"] == "RoCE v2");
  CHECK(ports[0]["not_usable"] == "");
  CHECK(ports[0]["mtu"] == 4096);
  CHECK(ports[0]["dma_buf"] == "yes");
  CHECK(ports[1]["port"] == 2);
  CHECK(ports[1]["gids"].empty());
  CHECK(ports[1]["not_usable"].get<std::string>().find("DOWN (Disabled)") != std::string::npos);
  CHECK(contains(mkctl(served.socket, "devices"), "mlx5_0"));
}

TEST_CASE("topo: GPUs, ports and the rails that come of them") {
  Served served;
  const auto topo = [&] {
    const Run run = mkctl(served.socket, "topo --json");
    REQUIRE(run.exit == 0);
    return nlohmann::json::parse(run.output)["topology"];
  };
  const auto topology = topo();
  CHECK(topology["numa_nodes"][0]["cpus"] == "0-2,5");
  CHECK(topology["gpus"][0]["pci_address"] == "0000:1b:00.0");
  CHECK(topology["gpus"][0]["rails"] == nlohmann::json::array({0}));
  CHECK(topology["gpus"][0]["distances"] == nlohmann::json({"NODE", "NODE"}));
  CHECK(topology["ports"][0]["rail"] == 0);
  CHECK(topology["ports"][0]["proxy_cpus"] == "0-2,5");
  CHECK(topology["ports"][1]["rail"] == -1);
  CHECK(topology["ports"][1]["not_used"].get<std::string>().find("DOWN (Disabled)") != std::string::npos);

  CHECK(topology["rails"] == 0);
  served.change([](FakeDaemon& daemon) { daemon.nic_rails = 2; });
  CHECK(topo()["rails"] == 2);

  served.change([](FakeDaemon& daemon) { daemon.chosen = {"mlx5_7"}; });
  CHECK(topo()["gpus"][0]["rails"].empty());
  CHECK(topo()["absent"] == nlohmann::json({"mlx5_7"}));
  CHECK(contains(mkctl(served.socket, "topo"), "topology.nics names mlx5_7"));

  served.daemon.machine_unreadable = true;
  CHECK(mkctl(served.socket, "topo").exit == 1);
}

TEST_CASE("exit status: unhealthy 1, usage 2, not reachable 3") {
  Served served;
  served.change([](FakeDaemon& daemon) { daemon.problems = {"peer nodeB is dead: silent"}; });
  const Run sick = mkctl(served.socket, "status");
  CHECK(sick.exit == 1);
  CHECK(contains(sick, "peer nodeB is dead: silent"));
  CHECK(mkctl(served.socket, "nonsense").exit == 2);
  CHECK(mkctl(served.socket, "status --sideways").exit == 2);
  CHECK(mkctl(served.socket, "link --peer nodeB --drop 2").exit == 2);
  CHECK(mkctl(served.socket, "--help").exit == 0);

  const std::string nowhere = (served.folder / "none.sock").string();
  const Run missing = mkctl(nowhere, "status");
  CHECK(missing.exit == 3);
  CHECK(contains(missing, nowhere));
  CHECK(contains(missing, "no such socket"));
}

TEST_CASE("link changes what is given and keeps the rest; errors come with their text") {
  Served served;
  CHECK(mkctl(served.socket, "link --peer nodeB --latency-us 250").exit == 0);
  const Run down = mkctl(served.socket, "link --peer nodeB --down -o json");
  REQUIRE(down.exit == 0);
  const auto link = nlohmann::json::parse(down.output)["link"];
  CHECK(link["down"] == true);
  CHECK(link["latency_us"] == 250);
  const Run unknown = mkctl(served.socket, "link --peer nodeX --up");
  CHECK(unknown.exit == 1);
  CHECK(contains(unknown, "no peer \"nodeX\""));
  CHECK(contains(mkctl(served.socket, "reload"), "file:3: speling"));
}

TEST_CASE("a second daemon does not take the socket of a living one") {
  Served served;
  FakeDaemon other;
  const auto second = ControlService::start(served.io, other, served.socket);
  CHECK(second.status().code() == StatusCode::kAlreadyExists);
  CHECK(second.status().text().find(served.socket) != std::string::npos);
  CHECK(mkctl(served.socket, "status").exit == 0);
}

TEST_CASE("a file that is no socket is left alone, and named") {
  Served served;
  const std::string path = served.folder / "data.db";
  std::ofstream(path) << "precious";
  FakeDaemon other;
  const Status refused = ControlService::start(served.io, other, path).status();
  CHECK(refused.code() == StatusCode::kAlreadyExists);
  CHECK(refused.text() == "control socket " + path + ": the file exists and is not a socket");
  CHECK(std::filesystem::file_size(path) == 8);
}

TEST_CASE("the control socket is for owner and group, whatever the process allows for files") {
  const mode_t before = ::umask(0);
  {
    const Served served;
    CHECK(std::filesystem::status(served.socket).permissions() == std::filesystem::perms(0660));
  }
  CHECK(::umask(before) == 0);
}

TEST_CASE("a daemon whose control thread is stuck is an error, not a hang") {
  Served served;
  std::promise<void> release, stuck;
  boost::asio::post(served.io, [&] {
    stuck.set_value();
    release.get_future().wait();
  });
  stuck.get_future().wait();
  const Run run = mkctl(served.socket, "status");
  release.set_value();
  CHECK(run.exit == 3);
  CHECK(contains(run, served.socket));
}

}  // namespace mkernel::rpc
