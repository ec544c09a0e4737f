#include "daemon/transport/rdma/probe.h"

#include <doctest/doctest.h>

#include <cerrno>

#include "tests/support/fake_nic/fabric.h"

namespace mkernel::transport::rdma {
namespace {

topology::RdmaDevice device(const std::string& name, std::uint32_t ports = 1) {
  topology::RdmaDevice made{.name = name};
  for (std::uint32_t port = 1; port <= ports; ++port) made.ports.push_back({.number = port});
  return made;
}

TEST_CASE("MTU of every port, and whether dma-bufs can be registered; nothing is left behind") {
  test::nic::Fabric fabric;
  fabric.add_device("host", {.name = "mlx5_0", .ports = {{.mtu = IBV_MTU_4096}, {.mtu = IBV_MTU_1024}}});
  fabric.add_device("host", {.name = "old_0", .dma_buf = false});
  fabric.add_device("host", {.name = "shut_0", .open_error = EACCES});
  std::vector<topology::RdmaDevice> devices = {device("mlx5_0", 2), device("old_0"), device("shut_0"),
                                               device("gone_0")};
  probe(fabric.verbs("host"), devices);
  CHECK(devices[0].dma_buf == "yes");
  CHECK(devices[0].ports[0].mtu == 4096);
  CHECK(devices[0].ports[1].mtu == 1024);
  CHECK(devices[1].dma_buf == "no");
  CHECK(devices[1].ports[0].mtu == 4096);
  CHECK(devices[2].dma_buf == "unknown: the device does not open: Permission denied");
  CHECK(devices[2].ports[0].mtu == 0);
  CHECK(devices[3].dma_buf == "unknown: the device does not open: No such device");
  CHECK(fabric.complaints().empty());
}

TEST_CASE("a port that the device does not have keeps its MTU unknown") {
  test::nic::Fabric fabric;
  fabric.add_device("host", {.name = "mlx5_0"});
  std::vector<topology::RdmaDevice> devices = {device("mlx5_0", 2)};
  probe(fabric.verbs("host"), devices);
  CHECK(devices[0].ports[0].mtu == 4096);
  CHECK(devices[0].ports[1].mtu == 0);
}

TEST_CASE("a device that dies meanwhile is unknown, with the reason") {
  test::nic::Fabric fabric;
  fabric.add_device("host", {.name = "mlx5_0"});
  fabric.fail_device("mlx5_0");
  std::vector<topology::RdmaDevice> devices = {device("mlx5_0")};
  probe(fabric.verbs("host"), devices);
  CHECK(devices[0].dma_buf.find("unknown: ") == 0);
  CHECK(devices[0].dma_buf.find("Input/output error") != std::string::npos);
}

TEST_CASE("with what is installed: devices that do not exist say so") {
  std::vector<topology::RdmaDevice> devices = {device("no_such_device")};
  probe(devices);
  CHECK(devices[0].dma_buf.find("unknown: ") == 0);
  devices.clear();
  probe(devices);
  CHECK(devices.empty());
}

}  // namespace
}  // namespace mkernel::transport::rdma
