// Which EFA devices the rails of a node use, and what is said when there is none.
#include "daemon/app/efa_rails.h"

#include <doctest/doctest.h>

#include "tests/unit/daemon/app/node_of.h"

namespace mkernel::app {
namespace {

topology::RdmaDevice nic(const std::string& name, const std::string& driver,
                         const std::string& state = "ACTIVE") {
  topology::RdmaPort port{.state = state, .physical_state = state == "ACTIVE" ? "LinkUp" : "Disabled"};
  port.gids = {{.index = 0, .bytes = *topology::Gid::parse("fe80:0000:0000:0000:0002:c903:00a1:b2c3")}};
  return {.name = name, .driver = driver, .file = {"/dev/infiniband/uverbs0", 0}, .ports = {port}};
}

TEST_CASE("rails take the EFA devices that can be used, in the order of topology.nics") {
  const std::vector devices{nic("efa0", "efa"), nic("mlx5_0", "mlx5_core"), nic("efa1", "efa", "DOWN"),
                            nic("efa2", "efa")};
  auto found = efa_devices(node_of(devices));
  REQUIRE_MESSAGE(found.ok(), found.status().text());
  CHECK(found.value() == std::vector<std::string>{"efa0", "efa2"});
  found = efa_devices(node_of(devices, {"efa2", "efa0"}));
  REQUIRE(found.ok());
  CHECK(found.value() == std::vector<std::string>{"efa2", "efa0"});
}

TEST_CASE("a rail's own device comes first, then the nearest, idle ones before those of other rails") {
  // Two of each of two switches, and one of the other NUMA node.
  topology::Node node =
      node_of({nic("efa0", "efa"), nic("efa1", "efa"), nic("efa2", "efa"), nic("efa3", "efa"),
               nic("far", "efa"), nic("down", "efa", "DOWN"), nic("mlx5_0", "mlx5_core")});
  for (topology::NicPort& port : node.ports) {
    const bool far = port.device == "far";
    const bool second = port.device == "efa2" || port.device == "efa3";
    port.place = {far ? 1 : 0, {far ? "pci1" : "pci0", second ? "switch1" : "switch0", port.device}};
  }
  const std::vector<std::string> own{"efa0", "efa1", "efa2", "efa3", "far"};
  const auto paths = [&](std::uint32_t rail, std::uint32_t rails, std::uint32_t count) {
    return efa_paths(node, own, rail, rails, count);
  };
  using Names = std::vector<std::string>;
  CHECK(paths(0, 5, 1) == Names{"efa0"});
  CHECK(paths(0, 5, 16) == Names{"efa0", "efa1", "efa2", "efa3", "far"});
  CHECK(paths(1, 5, 3) == Names{"efa1", "efa0", "efa2"});
  CHECK(paths(2, 5, 3) == Names{"efa2", "efa3", "efa0"});
  CHECK(paths(3, 5, 3) == Names{"efa3", "efa2", "efa0"});
  CHECK(paths(4, 5, 3) == Names{"far", "efa0", "efa1"});
  // Three rails: efa3 is nobody's own.
  CHECK(paths(0, 3, 3) == Names{"efa0", "efa1", "efa3"});
  CHECK(paths(5, 6, 2) == Names{"efa0", "efa1"});  // begins again
  CHECK(efa_paths(node_of({nic("efa0", "efa")}), {"efa0"}, 0, 1, 4) == Names{"efa0"});
}

TEST_CASE("without an EFA device that can be used, every device is named with the reason") {
  const Status none = efa_devices(node_of({nic("efa0", "efa", "DOWN"), nic("mlx5_0", "mlx5_core")},
                                          {"efa0", "mlx5_0", "efa9"}))
                          .status();
  CHECK(none.code() == StatusCode::kFailedPrecondition);
  for (const char* part :
       {"efa0:1: port is DOWN", "mlx5_0:1: no EFA (driver mlx5_core)", "efa9: not in this node"}) {
    CHECK_MESSAGE(none.text().find(part) != std::string::npos, none.text());
  }
  CHECK(efa_devices(node_of({})).status().text().find("no RDMA device") != std::string::npos);
}

}  // namespace
}  // namespace mkernel::app
