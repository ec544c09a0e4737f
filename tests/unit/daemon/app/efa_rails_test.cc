// Which EFA devices the rails of a node use, and what is said when there is none.
#include "daemon/app/efa_rails.h"

#include <doctest/doctest.h>

namespace mkernel::app {
namespace {

topology::RdmaDevice device(const std::string& name, const std::string& driver,
                            const std::string& state = "ACTIVE") {
  topology::RdmaPort port{.state = state, .physical_state = state == "ACTIVE" ? "LinkUp" : "Disabled"};
  port.gids = {{.index = 0, .bytes = *topology::Gid::parse("fe80:0000:0000:0000:0002:c903:00a1:b2c3")}};
  return {.name = name, .driver = driver, .file = {"/dev/infiniband/uverbs0", 0}, .ports = {port}};
}

/// A machine of one NUMA node without GPUs.
topology::Node node_of(const std::vector<topology::RdmaDevice>& devices,
                       const std::vector<std::string>& chosen = {}) {
  return topology::make_node({}, devices, chosen);
}

TEST_CASE("rails take the EFA devices that can be used, in the order of topology.nics") {
  const std::vector devices{device("efa0", "efa"), device("mlx5_0", "mlx5_core"),
                            device("efa1", "efa", "DOWN"), device("efa2", "efa")};
  auto found = efa_devices(node_of(devices));
  REQUIRE_MESSAGE(found.ok(), found.status().text());
  CHECK(found.value() == std::vector<std::string>{"efa0", "efa2"});
  found = efa_devices(node_of(devices, {"efa2", "efa0"}));
  REQUIRE(found.ok());
  CHECK(found.value() == std::vector<std::string>{"efa2", "efa0"});
}

TEST_CASE("without an EFA device that can be used, every device is named with the reason") {
  const Status none = efa_devices(node_of({device("efa0", "efa", "DOWN"), device("mlx5_0", "mlx5_core")},
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
