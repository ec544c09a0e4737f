// What is read of a machine, from made-up files below /proc, /sys and /dev.
#include "tools/mkctl/doctor/gather.h"

#include <doctest/doctest.h>

#include "tests/unit/daemon/topology/sysfs_tree.h"

namespace mkernel::mkctl::doctor {
namespace {

namespace fs = std::filesystem;
using topology::SysfsTree;

void add_process(SysfsTree& tree, const std::string& pid, const std::string& name, const std::string& locked,
                 const std::string& capabilities) {
  tree.write("proc/" + pid + "/comm", name);
  tree.write("proc/" + pid + "/cmdline",
             "/usr/bin/" + name + std::string(1, '\0') + "--config" + std::string(1, '\0') + "a.toml");
  tree.write("proc/" + pid + "/limits",
             "Limit                     Soft Limit           Hard Limit           Units     \n"
             "Max open files            1024                 524288               files     \n"
             "Max locked memory         " +
                 locked + "              unlimited            bytes     ");
  tree.write("proc/" + pid + "/status",
             "Name:\t" + name + "\nCapInh:\t0000000000000000\nCapEff:\t" + capabilities);
}

TEST_CASE("limits of the daemon's process") {
  SysfsTree tree;
  add_process(tree, "4711", "mkerneld", "8388608", "0000000000000000");
  add_process(tree, "4712", "mkerneld", "unlimited", "0000000000004001");
  add_process(tree, "4713", "postgres", "unlimited", "0000000000004001");
  const auto low = limits_of(tree.path, 4711);
  REQUIRE(low);
  CHECK(low->locked_bytes == 8388608);
  CHECK(low->open_files == 1024);
  CHECK(!low->may_lock_anyway);
  const auto high = limits_of(tree.path, 4712);
  REQUIRE(high);
  CHECK(high->locked_bytes == kUnlimited);
  CHECK(high->may_lock_anyway);
  CHECK(!limits_of(tree.path, 4713));  // the number belongs to somebody else here
  CHECK(!limits_of(tree.path, 4714));

  Facts facts;
  gather_machine(tree.path, facts);
  CHECK(facts.daemons == std::vector<std::string>{"pid 4711: /usr/bin/mkerneld --config a.toml",
                                                  "pid 4712: /usr/bin/mkerneld --config a.toml"});
}

TEST_CASE("any user can start a program of the daemon's name: its arguments become one line") {
  SysfsTree tree;
  tree.write("proc/66/comm", "mkerneld");
  tree.write("proc/66/cmdline", "mkerneld \x1b[2J\n\u202e");
  Facts facts;
  gather_machine(tree.path, facts);
  REQUIRE(facts.daemons.size() == 1);
  CHECK(facts.daemons[0].find_first_of("\x1b\n\u202e") == std::string::npos);
}

TEST_CASE("the ids that the namespace of the daemon's process maps") {
  SysfsTree tree;
  tree.write("proc/sys/kernel/overflowuid", "65534");
  tree.write("proc/sys/kernel/overflowgid", "65533");
  add_process(tree, "4711", "mkerneld", "8388608", "0000000000000000");
  CHECK(!ids_of(tree.path, 4711));  // it shows none
  tree.write("proc/4711/uid_map", "         0       1000          1\n         1     100000      65536");
  tree.write("proc/4711/gid_map", "         0          0 4294967295");
  const auto ids = ids_of(tree.path, 4711);
  REQUIRE(ids);
  CHECK(ids->users.mapped() == 65537);
  CHECK(!ids->users.known(65534));
  CHECK(ids->groups.complete());
  CHECK(ids->groups.overflow() == 65533);
  add_process(tree, "4712", "postgres", "8388608", "0000000000000000");
  tree.write("proc/4712/uid_map", "0 0 4294967295");
  tree.write("proc/4712/gid_map", "0 0 4294967295");
  CHECK(!ids_of(tree.path, 4712));
}

TEST_CASE("GPUs, the bridges above them, driver, modules, huge pages") {
  SysfsTree tree;
  const fs::path root_port = "sys/devices/pci0000:15/0000:15:01.0", gpu = root_port / "0000:1b:00.0",
                 audio = root_port / "0000:1b:00.1", lonely = "sys/devices/pci0000:15/0000:15:02.0";
  const auto device = [&](const fs::path& folder, const std::string& vendor, const std::string& type) {
    tree.write(folder / "vendor", vendor);
    tree.write(folder / "class", type);
    fs::create_directories(tree.path / "sys/bus/pci/devices");
    fs::create_directory_symlink(tree.path / folder, tree.path / "sys/bus/pci/devices" / folder.filename());
  };
  device(root_port, "0x8086", "0x060400");
  device(lonely, "0x8086", "0x060400");
  device(gpu, "0x10de", "0x030200");
  device(audio, "0x10de", "0x040300");
  tree.write(root_port / "config", std::string(64, '\0'));
  tree.write("proc/driver/nvidia/version",
             "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82.07");
  tree.write("proc/sys/kernel/osrelease", "6.1.0-18-amd64");
  tree.write("sys/module/nvidia_peermem/refcnt", "0");
  tree.write("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "1024");
  tree.write("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "1000");
  Facts facts;
  gather_machine(tree.path, facts);
  CHECK(facts.gpus == 1);
  REQUIRE(facts.bridges.size() == 1);
  CHECK(facts.bridges[0].address == "0000:15:01.0");
  CHECK(!facts.bridges[0].redirects);
  CHECK(facts.gpu_driver.find("Open Kernel Module") != std::string::npos);
  CHECK(facts.kernel == "6.1.0-18-amd64");
  CHECK(facts.peermem);
  REQUIRE(facts.huge_pages);
  CHECK(facts.huge_pages->total == 1024);
  CHECK(facts.huge_pages->free == 1000);
}

TEST_CASE("RDMA ports: the daemon's word, or without one what is seen here") {
  SysfsTree tree;
  const fs::path nic = tree.device("mlx5_0", "uverbs0");
  tree.pci(nic, "0000:19:00.0", "mlx5_core", 0);
  tree.gid(tree.port(nic, "Ethernet", "4: ACTIVE", "400 Gb/sec (4X NDR)"), 3,
           "0000:0000:0000:0000:0000:ffff:0a00:0107", "RoCE v2", "ens1");
  Facts facts;
  facts.daemon.unreachable = "no daemon reachable";
  gather_machine(tree.path, facts);
  REQUIRE(facts.ports.size() == 1);
  CHECK(facts.ports[0].name == "mlx5_0:1");
  CHECK(facts.ports[0].driver == "mlx5_core");
  CHECK(facts.ports[0].link_layer == "Ethernet");
  CHECK(facts.ports[0].gid == "::ffff:10.0.1.7");
  CHECK(facts.ports[0].gid_type == "RoCE v2");
  CHECK(facts.ports[0].not_usable.find("uverbs0 is not there") != std::string::npos);
  CHECK(!facts.infiniband_folder);

  facts = Facts{};
  facts.ports = {{"mlx5_7:1", "mlx5_core", "Ethernet", "", "", ""}};
  tree.write("dev/infiniband/uverbs0", "");
  gather_machine(tree.path, facts);
  REQUIRE(facts.ports.size() == 1);
  CHECK(facts.ports[0].name == "mlx5_7:1");
  CHECK(facts.infiniband_folder);
}

TEST_CASE("an empty machine is no reason to fail") {
  SysfsTree tree;
  Facts facts;
  facts.daemon.unreachable = "no daemon reachable";
  gather_machine(tree.path, facts);
  CHECK(facts.ports.empty());
  CHECK(facts.gpus == 0);
  CHECK(!facts.huge_pages);
}

TEST_CASE("peers as ListPeers replies them") {
  Facts facts;
  read_peers(nlohmann::ordered_json::parse(R"({"transport": "2 x verbs",
      "ports": [{"rail": 0, "name": "mlx5_0:1", "state": "ACTIVE", "link_layer": "Ethernet", "gid_type": "RoCE v2", "mtu": 4096, "gbps": 400.0, "gid": "::ffff:10.0.0.1"}],
      "peers": [
        {"node": "b", "address": "10.0.0.2:7600", "version": "1.2.3", "state": "alive", "reason": "", "transport": "2 x verbs",
         "ports": [{"rail": 0, "name": "mlx5_3:1", "state": "DOWN", "link_layer": "Ethernet", "gid_type": "RoCE v1", "mtu": 1024, "gbps": 100.0, "gid": "fd00::1"}],
         "rails": [{"rail": 0, "connected": true, "waiting_seconds": 0.0}, {"rail": 1, "connected": false, "waiting_seconds": 4.5}],
         "clock_offset_ms": -3.5, "round_trip_ms": 0.5},
        {"node": "", "address": "10.0.0.3:7600", "version": "", "state": "connecting", "reason": "refused", "transport": "",
         "ports": [], "rails": [], "clock_offset_ms": null, "round_trip_ms": null}]})"),
             facts);
  CHECK(facts.rails == "2 x verbs");
  REQUIRE(facts.rail_ports.size() == 1);
  CHECK(facts.rail_ports[0].name == "mlx5_0:1");
  REQUIRE(facts.peers.size() == 2);
  const Peer& peer = facts.peers[0];
  REQUIRE(peer.rail_ports.size() == 1);
  CHECK(peer.rail_ports[0].state == "DOWN");
  CHECK(peer.rail_ports[0].gid_type == "RoCE v1");
  CHECK(peer.rail_ports[0].gid == "fd00::1");
  CHECK(peer.rail_ports[0].mtu == 1024);
  CHECK(peer.rail_ports[0].gbps == 100);
  CHECK(peer.unanswered == std::vector<std::pair<std::uint32_t, double>>{{1, 4.5}});
  REQUIRE(peer.clock.has_value());
  CHECK(peer.clock->offset_ms == -3.5);
  CHECK(peer.clock->round_trip_ms == 0.5);
  CHECK(facts.peers[1].name == "10.0.0.3:7600");
  CHECK_FALSE(facts.peers[1].clock.has_value());
}

TEST_CASE("ports that would be rails if the daemon ran more, as GetTopology replies them") {
  const auto daemon_of = [](int rails) {
    nlohmann::ordered_json topology = {{"absent", {"mlx5_7"}}, {"rails", rails}, {"ports", {}}};
    for (int port = 0; port < 3; ++port)
      topology["ports"].push_back({{"name", "mlx5_" + std::to_string(port) + ":1"}, {"rail", port - 1}});
    Daemon daemon;
    read_topology(topology, daemon);
    return daemon;
  };
  CHECK(daemon_of(1).absent_nics == std::vector<std::string>{"mlx5_7"});
  CHECK(daemon_of(1).nic_rails == 1);
  CHECK(daemon_of(1).idle_ports == std::vector<std::string>{"mlx5_2:1"});
  CHECK(daemon_of(2).idle_ports.empty());
  CHECK(daemon_of(0).idle_ports.empty());  // tcp
}

TEST_CASE("ports as ListDevices replies them") {
  const auto reply = nlohmann::ordered_json::parse(R"([{"device": "efa_0", "port": 1, "driver": "efa",
      "link_layer": "other", "gid": "fe80::1", "gid_type": "other", "not_usable": "port is DOWN", "mtu": 4096, "dma_buf": "no", "gids": []}])");
  const auto ports = ports_of(reply);
  REQUIRE(ports.size() == 1);
  CHECK(ports[0].name == "efa_0:1");
  CHECK(ports[0].driver == "efa");
  CHECK(ports[0].not_usable == "port is DOWN");
  CHECK(ports[0].mtu == 4096);
  CHECK(ports[0].dma_buf == "no");

  SysfsTree tree;
  tree.write("other.json", nlohmann::ordered_json{{"devices", reply}}.dump());
  tree.write("half.json", R"({"devices": [{"device": 7}]})");
  tree.write("text.json", "mlx5_0");
  const auto read = read_ports(tree.path / "other.json");
  REQUIRE(read.ok());
  CHECK(read.value().size() == 1);
  for (const char* file : {"half.json", "text.json", "none.json"})
    CHECK(read_ports(tree.path / file).status().text().find(file) != std::string::npos);
}

}  // namespace
}  // namespace mkernel::mkctl::doctor
