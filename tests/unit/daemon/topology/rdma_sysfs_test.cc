// Trees as the kernel shows them for a ConnectX on InfiniBand, one on Ethernet, EFA and soft-RoCE.
#include "daemon/topology/rdma_sysfs.h"

#include <doctest/doctest.h>

#include <cerrno>
#include <string>

#include "tests/unit/daemon/topology/sysfs_tree.h"

namespace mkernel::topology {
namespace {

constexpr const char* kNone = "0000:0000:0000:0000:0000:0000:0000:0000";

TEST_CASE("a node without RDMA has no devices") {
  const SysfsTree root;
  CHECK(rdma_devices(root.path).empty());
}

TEST_CASE("ConnectX on InfiniBand and on Ethernet") {
  SysfsTree root;
  const std::filesystem::path ib = root.device("mlx5_0", "uverbs0"), roce = root.device("mlx5_1", "uverbs1");
  root.pci(ib, "0000:19:00.0", "mlx5_core", 0);
  root.pci(roce, "0000:9a:00.0", "mlx5_core", 1);
  const std::filesystem::path ib_port = root.port(ib, "InfiniBand", "4: ACTIVE", "400 Gb/sec (4X NDR)");
  root.gid(ib_port, 0, "fe80:0000:0000:0000:a088:c203:0046:1a30", "IB/RoCE v1", "");
  root.gid(ib_port, 1, kNone, "", "");
  const std::filesystem::path roce_port = root.port(roce, "Ethernet", "1: DOWN", "40 Gb/sec (4X QDR)");
  root.gid(roce_port, 0, "fe80:0000:0000:0000:0a00:27ff:fe14:c0de", "IB/RoCE v1", "ens1");
  root.gid(roce_port, 1, "fe80:0000:0000:0000:0a00:27ff:fe14:c0de", "RoCE v2", "ens1");
  root.gid(roce_port, 10, "0000:0000:0000:0000:0000:ffff:0a00:0107", "RoCE v2", "ens1");
  root.gid(roce_port, 2, "0000:0000:0000:0000:0000:ffff:0a00:0208", "", "");  // another namespace's
  root.write("dev/infiniband/uverbs0", "");

  const auto devices = rdma_devices(root.path);
  REQUIRE(devices.size() == 2);
  const auto one = rdma_device("mlx5_1", root.path);
  REQUIRE(one.has_value());
  CHECK(one->name == "mlx5_1");
  CHECK(one->pci_address == devices[1].pci_address);
  CHECK_FALSE(rdma_device("mlx5_9", root.path).has_value());
  CHECK(devices[0].name == "mlx5_0");
  CHECK(devices[0].driver == "mlx5_core");
  CHECK(devices[0].firmware == "28.39.1002");
  CHECK(devices[0].pci_address == "0000:19:00.0");
  CHECK(devices[0].numa_node == 0);
  CHECK(devices[0].file.path == "/dev/infiniband/uverbs0");
  CHECK(devices[0].file.error == 0);
  REQUIRE(devices[0].ports.size() == 1);
  CHECK(devices[0].ports[0].state == "ACTIVE");
  CHECK(devices[0].ports[0].link_layer == LinkLayer::kInfiniband);
  CHECK(devices[0].ports[0].gbps == 400);
  CHECK(devices[0].ports[0].lid == 31);
  REQUIRE(devices[0].ports[0].gids.size() == 1);
  CHECK(devices[0].ports[0].gids[0].type == GidType::kInfiniband);

  CHECK(devices[1].numa_node == 1);
  CHECK(devices[1].file.error == ENOENT);
  REQUIRE(devices[1].ports.size() == 1);
  const RdmaPort& port = devices[1].ports[0];
  CHECK(port.state == "DOWN");
  CHECK(port.physical_state == "Disabled");
  REQUIRE(port.gids.size() == 3);
  CHECK(port.gids[2].index == 10);  // in the order of their numbers, not of their names
  CHECK(port.gids[0].type == GidType::kRoceV1);
  CHECK(port.gids[2].interface == "ens1");
  CHECK(choose_gid(port, AddressFamily::kIpv4)->index == 10);
}

TEST_CASE("EFA, and soft-RoCE on a virtual network interface") {
  SysfsTree root;
  const std::filesystem::path efa = root.device("efa_0", "uverbs0"), rxe = root.device("rxe0", "uverbs7");
  root.pci(efa, "0000:10:19.0", "efa", -1);
  root.gid(root.port(efa, "Unspecified", "4: ACTIVE", "100 Gb/sec (4X EDR)"), 0,
           "fe80:0000:0000:0000:0cff:59ff:fe3c:2f11", "", "");
  root.pci(rxe, "virtio0", "virtio_net", -1);  // the interface's, not its own
  root.write(rxe / "parent", "ens3");
  root.write(rxe / "node_desc", "rxe");
  root.gid(root.port(rxe, "Ethernet", "4: ACTIVE", "2.5 Gb/sec (1X)"), 1,
           "0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2", "ens3");

  const auto devices = rdma_devices(root.path);
  REQUIRE(devices.size() == 2);
  CHECK(devices[0].driver == "efa");
  CHECK(devices[0].numa_node == -1);
  CHECK(devices[0].ports[0].link_layer == LinkLayer::kOther);
  CHECK(choose_gid(devices[0].ports[0], AddressFamily::kIpv4)->index == 0);
  CHECK(devices[1].driver == "rxe");
  CHECK(devices[1].pci_address.empty());
  CHECK(devices[1].file.path == "/dev/infiniband/uverbs7");
  CHECK(devices[1].ports[0].gbps == 2.5);
  CHECK(choose_gid(devices[1].ports[0], AddressFamily::kIpv6)->index == 1);
}

TEST_CASE("a device without an entry among the verbs devices has no file") {
  SysfsTree root;
  root.write("sys/class/infiniband/mlx5_0/fw_ver", "1");
  const auto devices = rdma_devices(root.path);
  REQUIRE(devices.size() == 1);
  CHECK(devices[0].file.path.empty());
  CHECK(devices[0].ports.empty());
}

}  // namespace
}  // namespace mkernel::topology
