// What mkctl shows of a daemon that is made up: tables and JSON.
#include <nlohmann/json.hpp>

#include "tests/unit/daemon/rpc/fake_daemon.h"

namespace mkernel::rpc {

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
  CHECK(sessions["sessions"][0]["launches_total"].get<std::uint64_t>() == ~std::uint64_t{0});
  CHECK(sessions["sessions"][0]["fallbacks_total"] == 5);
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
  CHECK(json("status")["status"]["longest_wall_ms"] == 40.0);
  CHECK(json("status")["status"]["walls_over_limit"] == 5);
  CHECK(json("status")["status"]["longest_asleep_ms"] == 30.0);
  CHECK(json("status")["status"]["asleep_over_limit"] == 1);
  CHECK(json("status")["status"]["slices"][0]["longest_wall_ms"] == 40.0);
  CHECK(json("status")["status"]["slices"][1]["longest_asleep_ms"].is_null());
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

TEST_CASE("a list of any length comes in parts, between which others are served") {
  Served served;
  served.daemon.all_channels = 100000;  // as one message some 5 MB, which gRPC does not take
  served.daemon.part = 1000;
  const Run run = mkctl(served.socket, "channels --all -o json");
  REQUIRE(run.exit == 0);
  const auto channels = nlohmann::json::parse(run.output).at("channels");
  REQUIRE(channels.size() == 100000);
  for (std::size_t i = 0; i < channels.size(); ++i) {
    if (channels[i].at("lane") != i) FAIL("row " << i << " is " << channels[i].dump());
  }
  CHECK(served.daemon.asked_for_channels == 100);
}

TEST_CASE("sleep that the kernel does not show is left out, instead of being 0") {
  Served served;
  served.daemon.knows_sleep = false;
  const auto json = nlohmann::json::parse(mkctl(served.socket, "status -o json").output);
  CHECK(json.at("status").at("longest_asleep_ms").is_null());
  CHECK(json.at("status").at("asleep_over_limit").is_null());
  CHECK(json.at("status").at("longest_wall_ms") == 40.0);
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

}  // namespace mkernel::rpc
