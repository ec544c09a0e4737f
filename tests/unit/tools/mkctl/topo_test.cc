// What `mkctl topo` draws of published machines.
#include "tools/mkctl/topo.h"

#include <doctest/doctest.h>

#include <sstream>

#include "daemon/rpc/topology_message.h"
#include "daemon/topology/rdma_sysfs.h"
#include "tests/unit/daemon/topology/machines.h"
#include "tools/mkctl/table.h"

namespace mkernel::mkctl {
namespace {

std::string drawn(const std::string& xml, const std::vector<topology::RdmaDevice>& devices,
                  std::uint32_t rails = 0) {
  const auto machine = topology::machine_from_xml(xml);
  REQUIRE(machine.ok());
  const topology::Node node = topology::make_node(machine.value(), devices, {});
  v1::Topology message;
  rpc::fill(node, topology::place(node), message);
  message.set_rails(rails);
  std::ostringstream out;
  print_topology(out, to_json(message));
  return out.str();
}

bool has_line(const std::string& text, const std::string& line) {
  return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

TEST_CASE("DGX") {
  topology::SysfsTree tree;
  topology::Dgx::devices(tree);
  const std::string text = drawn(topology::Dgx::xml(), topology::rdma_devices(tree.path));
  CAPTURE(text);
  CHECK(has_line(text, "NUMA node 0, package 0, CPUs 0-55,112-167"));
  CHECK(has_line(text, "  pci0000:15 - 0000:15:01.0 - 0000:16:00.0"));
  CHECK(has_line(text, "    0000:17:00.0:  mlx5_0:1  0000:18:00.0  ACTIVE, 400 Gb/s, rail 0"));
  CHECK(has_line(text, "    0000:17:01.0 - 0000:19:00.0 - 0000:1a:00.0:  GPU 0  0000:1b:00.0  H200"));
  CHECK(has_line(text, "    mlx5_1:1  0000:29:00.0  ACTIVE, 400 Gb/s, no rail"));
  CHECK(has_line(text, "mlx5_3:1   NODE  PXB   NODE  NODE  SYS   SYS   SYS   SYS"));
  CHECK(has_line(text, "7    7      PXB       through several PCIe switches"));
  CHECK(has_line(text, "7     mlx5_11:1  1          56-111,168-223"));
  CHECK(text.find("mlx5_8:1  every GPU has nearer ports") != std::string::npos);
}

TEST_CASE("p5en.48xlarge") {
  topology::SysfsTree tree;
  topology::P5en::devices(tree);
  const std::string text = drawn(topology::P5en::xml(), topology::rdma_devices(tree.path));
  CAPTURE(text);
  CHECK(has_line(text, "  pci0000:44 - 0000:44:00.0 - 0000:45:00.0"));
  CHECK(has_line(text, "    0000:46:01.6:  rdmap85s0:1  0000:55:00.0  ACTIVE, 400 Gb/s, rail 0"));
  CHECK(has_line(text, "0    0,8    PIX       same PCIe switch"));
  CHECK(text.find("no rail") == std::string::npos);
}

TEST_CASE("ports that are rails of the placement, while the daemon runs fewer") {
  topology::SysfsTree tree;
  topology::Dgx::devices(tree);
  const auto devices = topology::rdma_devices(tree.path);
  const std::string of_six = drawn(topology::Dgx::xml(), devices, 6);
  CAPTURE(of_six);
  CHECK(has_line(of_six, "proxy.threads = 6: no rail that runs uses mlx5_10:1, mlx5_11:1"));
  for (const std::uint32_t rails : {0U, 8U, 16U}) {
    CHECK(drawn(topology::Dgx::xml(), devices, rails).find("proxy.threads") == std::string::npos);
  }
}

TEST_CASE("a machine with neither says so") {
  const std::string text = drawn(topology::flat_xml(0, 0), {});
  CHECK(has_line(text, "NUMA node 0, package 0, CPUs 0-3"));
  CHECK(has_line(text, "no NVIDIA GPU"));
  CHECK(has_line(text, "no RDMA device"));
}

}  // namespace
}  // namespace mkernel::mkctl
