#include "daemon/topology/placement.h"

#include <doctest/doctest.h>

#include <cerrno>
#include <set>

#include "daemon/topology/rdma_sysfs.h"
#include "tests/unit/daemon/topology/machines.h"

namespace mkernel::topology {
namespace {

Machine machine(const std::string& xml) {
  auto read = machine_from_xml(xml);
  REQUIRE_MESSAGE(read.ok(), read.status().to_string());
  return std::move(read).value();
}

RdmaDevice nic(const std::string& name, const std::string& pci_address, int numa_node = -1) {
  RdmaPort port{.state = "ACTIVE", .physical_state = "LinkUp", .link_layer = LinkLayer::kInfiniband};
  port.gids = {{.bytes = *Gid::parse("fe80:0000:0000:0000:a088:c203:0046:1a30")}};
  return {.name = name,
          .driver = "mlx5_core",
          .pci_address = pci_address,
          .numa_node = numa_node,
          .file = {"/dev/infiniband/uverbs0", 0},
          .ports = {port}};
}

/// What each GPU uses, as device names.
std::vector<std::vector<std::string>> names(const Node& node, const Placement& placement) {
  std::vector<std::vector<std::string>> all;
  for (const GpuRails& gpu : placement.gpus) {
    all.emplace_back();
    for (const std::size_t rail : gpu.rails)
      all.back().push_back(node.ports[placement.rails[rail].port].device);
  }
  return all;
}

using Names = std::vector<std::vector<std::string>>;

TEST_CASE("DGX: one NIC for each GPU, behind its switch; those for storage are spare") {
  SysfsTree tree;
  Dgx::devices(tree);
  const Machine dgx = machine(Dgx::xml());
  const Node node = make_node(dgx, rdma_devices(tree.path), {});
  REQUIRE(node.gpus.size() == 8);
  REQUIRE(node.ports.size() == 12);
  REQUIRE(node.numa_nodes.size() == 2);
  CHECK(node.numa_nodes[1].package == 1);
  CHECK(node.gpus[3].pci_address == "0000:61:00.0");
  CHECK(node.gpus[3].place.numa_node == 0);
  CHECK(node.gpus[4].place.numa_node == 1);

  const Placement placement = place(node);
  CHECK(
      names(node, placement) ==
      Names{
          {"mlx5_0"}, {"mlx5_3"}, {"mlx5_4"}, {"mlx5_5"}, {"mlx5_6"}, {"mlx5_9"}, {"mlx5_10"}, {"mlx5_11"}});
  REQUIRE(placement.rails.size() == 8);
  for (std::uint32_t gpu = 0; gpu < 8; ++gpu) {
    CHECK(placement.gpus[gpu].distance == Distance::kPxb);
    CHECK(placement.gpus[gpu].rails == std::vector<std::size_t>{gpu});  // rail number = GPU, on every node
  }
  CHECK(placement.rails[0].cpus.size() == 112);
  CHECK(placement.rails[0].cpus.front() == 0);
  CHECK(placement.rails[0].cpus.back() == 167);
  CHECK(placement.rails[7].cpus.front() == 56);
  REQUIRE(placement.spare.size() == 4);
  CHECK(node.ports[placement.spare[0].port].device == "mlx5_1");

  // The distances among which that was chosen.
  const auto far = [&](std::uint32_t gpu, const std::string& device) {
    for (const NicPort& port : node.ports)
      if (port.device == device) return std::string(name_of(distance(node.gpus[gpu].place, port.place)));
    return std::string("no such device");
  };
  CHECK(far(0, "mlx5_0") == "PXB");
  CHECK(far(0, "mlx5_3") == "NODE");
  CHECK(far(0, "mlx5_1") == "NODE");
  CHECK(far(0, "mlx5_6") == "SYS");
  // Two ports of one card.
  CHECK(node.ports[1].device == "mlx5_1");
  CHECK(node.ports[2].device == "mlx5_2");
  CHECK(distance(node.ports[1].place, node.ports[2].place) == Distance::kPix);
}

TEST_CASE("p5en.48xlarge: sixteen EFA devices, two for each GPU, behind its switch") {
  SysfsTree tree;
  P5en::devices(tree);
  const Node node = make_node(machine(P5en::xml()), rdma_devices(tree.path), {});
  REQUIRE(node.gpus.size() == 8);
  REQUIRE(node.ports.size() == 16);
  const Placement placement = place(node);
  REQUIRE(placement.rails.size() == 16);
  CHECK(placement.spare.empty());
  const Names chosen = names(node, placement);
  std::set<std::string> used;
  for (std::uint32_t gpu = 0; gpu < 8; ++gpu) {
    CAPTURE(gpu);
    CHECK(placement.gpus[gpu].distance == Distance::kPix);
    CHECK(placement.gpus[gpu].why == "same PCIe switch");
    // In rounds: rails 0 to 7 already serve every GPU.
    CHECK(placement.gpus[gpu].rails == std::vector<std::size_t>{gpu, gpu + 8});
    for (const std::string& name : chosen[gpu]) {
      CHECK(used.insert(name).second);
      bool near = false;
      for (int i = 0; i < 4; ++i) near = near || name == P5en::name(static_cast<int>(gpu) / 2, i);
      CHECK(near);
    }
    CHECK(placement.rails[gpu].cpus.front() == (gpu < 4 ? 0 : 48));
  }
}

TEST_CASE("p5en with ports down: GPUs of one switch stay equal, what is left over is spare") {
  SysfsTree tree;
  P5en::devices(tree);
  tree.write("sys/class/infiniband/" + P5en::name(0, 1) + "/ports/1/state", "1: DOWN");
  for (int i = 0; i < 4; ++i)
    tree.write("sys/class/infiniband/" + P5en::name(3, i) + "/ports/1/state", "1: DOWN");
  const Node node = make_node(machine(P5en::xml()), rdma_devices(tree.path), {});
  const Placement placement = place(node);
  CHECK(placement.gpus[0].rails.size() == 1);
  CHECK(placement.gpus[1].rails.size() == 1);
  CHECK(placement.gpus[0].rails != placement.gpus[1].rails);
  CHECK(placement.gpus[2].rails.size() == 2);
  // The last switch has no port left: its GPUs share the other switch of their socket, equally loaded.
  CHECK(placement.gpus[6].distance == Distance::kNode);
  CHECK(placement.gpus[6].rails.size() == 1);
  CHECK(placement.gpus[6].rails != placement.gpus[7].rails);
  REQUIRE(placement.spare.size() == 6);
  CHECK(placement.spare.front().why.find("port is DOWN") == 0);
  CHECK(placement.spare[1].why.find("as many as the others") != std::string::npos);
}

TEST_CASE("two GPUs and one NIC share it") {
  const Node node = make_node(machine(flat_xml(2, 1)), {nic("mlx5_0", "0000:00:01.0")}, {});
  const Placement placement = place(node);
  CHECK(names(node, placement) == Names{{"mlx5_0"}, {"mlx5_0"}});
  REQUIRE(placement.rails.size() == 1);
  CHECK(placement.gpus[1].distance == Distance::kPhb);
  CHECK(placement.gpus[1].why == "same PCIe host bridge, shared by 2 GPUs: there are fewer ports");
}

TEST_CASE("one GPU takes every port that is equally near") {
  const Node node = make_node(
      machine(flat_xml(1, 3)),
      {nic("mlx5_0", "0000:00:01.0"), nic("mlx5_1", "0000:00:02.0"), nic("mlx5_2", "0000:00:03.0")}, {});
  CHECK(place(node).gpus[0].rails == std::vector<std::size_t>{0, 1, 2});
}

TEST_CASE("no GPU: every usable port is a rail") {
  const Node node =
      make_node(machine(flat_xml(0, 2)), {nic("mlx5_0", "0000:00:01.0"), nic("mlx5_1", "0000:00:02.0")}, {});
  const Placement placement = place(node);
  CHECK(placement.gpus.empty());
  CHECK(placement.rails.size() == 2);
  CHECK(placement.rails[0].cpus == std::vector<std::uint32_t>{0, 1, 2, 3});
}

TEST_CASE("no NIC, or none that can be used: no rail, and the reason") {
  RdmaDevice forbidden = nic("mlx5_0", "0000:00:01.0");
  forbidden.file.error = EACCES;
  for (const std::vector<RdmaDevice>& devices : {std::vector<RdmaDevice>{}, {forbidden}}) {
    const Node node = make_node(machine(flat_xml(2, 1)), devices, {});
    const Placement placement = place(node);
    CHECK(placement.rails.empty());
    REQUIRE(placement.gpus.size() == 2);
    CHECK(placement.gpus[0].rails.empty());
    CHECK(placement.gpus[0].why == "no RDMA port of this node can be used");
    CHECK(placement.spare.size() == devices.size());
  }
}

TEST_CASE("a NIC that nobody places is used, as the farthest, and that is said") {
  // Two NUMA nodes, and a host bridge that belongs to neither; the driver does not know either.
  const auto xml = MachineXml::write(
      {{{{0, 1}}, {{"10-10", {{"0000:10:00.0", "0302 [10de:2335]", "", {}, ""}}}}}, {{{2, 3}}, {}}},
      {{"20-20", {{"0000:20:00.0", "0207 [15b3:1021]", "", {}, ""}}}});
  SUBCASE("unknown to all") {
    const Node node = make_node(machine(xml), {nic("mlx5_0", "0000:20:00.0")}, {});
    CHECK(node.ports[0].place.numa_node == -1);
    CHECK(node.gpus[0].place.numa_node == 0);
    const Placement placement = place(node);
    CHECK(placement.gpus[0].distance == Distance::kSys);
    CHECK(placement.gpus[0].why == "where the port lies is not known");
    CHECK(placement.rails[0].cpus.empty());
  }
  SUBCASE("known to its driver") {
    const Node node = make_node(machine(xml), {nic("mlx5_0", "0000:20:00.0", 0)}, {});
    CHECK(place(node).gpus[0].distance == Distance::kNode);
    CHECK(place(node).rails[0].cpus == std::vector<std::uint32_t>{0, 1});
  }
}

TEST_CASE("soft devices lie on the only NUMA node there is") {
  RdmaDevice rxe = nic("rxe0", "");
  rxe.driver = "rxe";
  const Node node = make_node(machine(flat_xml(0, 0)), {rxe}, {});
  CHECK(node.ports[0].place.numa_node == 0);
  CHECK(place(node).rails[0].cpus.size() == 4);
}

TEST_CASE("topology.nics chooses ports and their order") {
  const std::vector<RdmaDevice> devices = {nic("mlx5_0", "0000:00:01.0"), nic("mlx5_1", "0000:00:02.0"),
                                           nic("mlx5_2", "0000:00:03.0")};
  const Node node = make_node(machine(flat_xml(1, 3)), devices, {"mlx5_2:1", "mlx5_0", "mlx5_9"});
  CHECK(names(node, place(node)) == Names{{"mlx5_2", "mlx5_0"}});
  CHECK(node.absent == std::vector<std::string>{"mlx5_9"});
  REQUIRE(place(node).spare.size() == 1);
  CHECK(place(node).spare[0].why == "topology.nics does not name it");
}

TEST_CASE("a container whose sysfs answers nothing about ports has none to place") {
  SysfsTree tree;
  const fs::path device = tree.device("mlx5_0", "uverbs0");
  tree.pci(device, "0000:00:01.0", "mlx5_core", -1);
  fs::create_directories(tree.path / device / "ports/1/gids");  // state, rate, GIDs: EINVAL
  const Node node = make_node(machine(flat_xml(1, 1)), rdma_devices(tree.path), {});
  REQUIRE(node.ports.size() == 1);
  CHECK(!node.ports[0].not_usable.empty());
  CHECK(place(node).gpus[0].rails.empty());
}

}  // namespace
}  // namespace mkernel::topology
