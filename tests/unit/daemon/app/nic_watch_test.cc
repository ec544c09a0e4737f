// What peers are told of this node's ports.
#include "daemon/app/nic_watch.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>

#include "tests/unit/daemon/session/harness.h"

namespace mkernel::app {
namespace {

TEST_CASE("a port is told as it is, also one that is down or gone") {
  topology::RdmaPort up{.state = "ACTIVE", .link_layer = topology::LinkLayer::kEthernet};
  up.mtu = 4096;
  up.gbps = 400;
  up.gids = {{.index = 3,
              .bytes = *topology::Gid::parse("0000:0000:0000:0000:0000:ffff:0a00:0107"),
              .type = topology::GidType::kRoceV2,
              .interface = "ens1"}};
  const topology::RdmaPort down{.number = 2, .state = "DOWN"};
  const auto ports =
      describe_ports({"mlx5_0:1", "mlx5_0:2", "mlx5_9:1"}, {{.name = "mlx5_0", .ports = {up, down}}},
                     topology::AddressFamily::kIpv4);
  REQUIRE(ports.size() == 3);
  CHECK(ports[0].rail() == 0);
  CHECK(ports[0].state() == "ACTIVE");
  CHECK(ports[0].link_layer() == "Ethernet");
  CHECK(ports[0].gid() == "::ffff:10.0.1.7");
  CHECK(ports[0].gid_type() == "RoCE v2");
  CHECK(ports[0].mtu() == 4096);
  CHECK(ports[0].gbps() == 400);
  CHECK(ports[1].rail() == 1);
  CHECK(ports[1].state() == "DOWN");
  CHECK(ports[1].gid_type().empty());
  CHECK(ports[2].name() == "mlx5_9:1");
  CHECK(ports[2].state() == "absent");
}

TEST_CASE("the address that is told is the one that rails of this configuration choose") {
  const auto gid = [](std::uint32_t index, const char* text) {
    return topology::Gid{index, *topology::Gid::parse(text), topology::GidType::kRoceV2, "ens1"};
  };
  topology::RdmaPort port{.state = "DOWN", .link_layer = topology::LinkLayer::kEthernet};
  port.gids = {gid(1, "fd00:0000:0000:0000:0000:0000:0000:0001"),
               gid(3, "0000:0000:0000:0000:0000:ffff:0a00:0107")};
  const std::vector<topology::RdmaDevice> devices{{.name = "mlx5_0", .ports = {port}}};
  using topology::AddressFamily;
  CHECK(describe_ports({"mlx5_0:1"}, devices, AddressFamily::kIpv4)[0].gid() == "::ffff:10.0.1.7");
  CHECK(describe_ports({"mlx5_0:1"}, devices, AddressFamily::kIpv6)[0].gid() == "fd00::1");
}

TEST_CASE("a watch looks at once and again, and ends at once") {
  std::atomic<int> told = 0;
  const auto look = [] { return std::vector<v1::NicPort>(1); };
  const auto tell = [&](const std::vector<v1::NicPort>& ports) { told += static_cast<int>(ports.size()); };
  {
    const NicWatch often(look, std::chrono::milliseconds(1), tell);
    CHECK(session::testing::eventually([&] { return told >= 3; }));
  }
  told = 0;
  {
    const NicWatch seldom(look, std::chrono::hours(24), tell);
    CHECK(session::testing::eventually([&] { return told == 1; }));
  }
  CHECK(told == 1);
}

}  // namespace
}  // namespace mkernel::app
