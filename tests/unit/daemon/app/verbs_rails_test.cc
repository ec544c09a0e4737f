// Which ports the rails of a node use, and what is said when there is none.
#include "daemon/app/verbs_rails.h"

#include <doctest/doctest.h>

#include "tests/unit/daemon/app/node_of.h"

namespace mkernel::app {
namespace {

using topology::AddressFamily;

topology::Gid gid(std::uint32_t index, const char* text) {
  return {.index = index,
          .bytes = *topology::Gid::parse(text),
          .type = topology::GidType::kRoceV2,
          .interface = "eth0"};
}

topology::RdmaDevice device(const std::string& name, const std::string& state = "ACTIVE") {
  topology::RdmaPort port{.state = state, .physical_state = state == "ACTIVE" ? "LinkUp" : "Disabled"};
  port.link_layer = topology::LinkLayer::kEthernet;
  port.gids = {gid(1, "fe80:0000:0000:0000:0002:c903:00a1:b2c3"),
               gid(5, "fd00:0000:0000:0000:0000:0000:0000:0001"),
               gid(7, "0000:0000:0000:0000:0000:ffff:0a00:0001")};
  return {.name = name, .driver = "rxe", .file = {"/dev/infiniband/uverbs0", 0}, .ports = {port}};
}

TEST_CASE("rails take the usable ports, each with the GID of the wanted family") {
  const std::vector devices{device("rxe0"), device("rxe1", "DOWN"), device("rxe2")};
  auto ports = rail_ports(node_of(devices), devices, AddressFamily::kIpv4);
  REQUIRE_MESSAGE(ports.ok(), ports.status().text());
  REQUIRE(ports->size() == 2);
  CHECK((*ports)[0].device == "rxe0");
  CHECK((*ports)[1].device == "rxe2");
  CHECK((*ports)[0].gid_index == 7);
  CHECK((*ports)[0].gid[15] == 1);
  ports = rail_ports(node_of(devices), devices, AddressFamily::kIpv6);
  REQUIRE(ports.ok());
  CHECK((*ports)[0].gid_index == 5);
}

TEST_CASE("the order of topology.nics is the order of the rails") {
  const std::vector devices{device("rxe0"), device("rxe1"), device("rxe2")};
  const auto ports = rail_ports(node_of(devices, {"rxe2", "rxe0"}), devices, AddressFamily::kIpv4);
  REQUIRE(ports.ok());
  REQUIRE(ports.value().size() == 2);
  CHECK(ports.value()[0].device == "rxe2");
  CHECK(ports.value()[1].device == "rxe0");
}

TEST_CASE("without a port that can be used, every one is named with the reason") {
  const std::vector devices{device("rxe0", "DOWN")};
  const Status none =
      rail_ports(node_of(devices, {"rxe0", "mlx5_9"}), devices, AddressFamily::kIpv4).status();
  CHECK(none.code() == StatusCode::kFailedPrecondition);
  CHECK_MESSAGE(none.text().find("rxe0:1: port is DOWN") != std::string::npos, none.text());
  CHECK_MESSAGE(none.text().find("mlx5_9: not in this node") != std::string::npos, none.text());
  const Status empty = rail_ports(node_of({}), {}, AddressFamily::kIpv4).status();
  CHECK(empty.text().find("no RDMA device") != std::string::npos);
}

TEST_CASE("a port is chosen again with the GID that it has now, or not at all") {
  const transport::VerbsPort before{"rxe0", 1, 3, {}};
  const auto again = choose_again(before, {device("rxe0")}, AddressFamily::kIpv4);
  REQUIRE(again.has_value());
  CHECK(again->gid_index == 7);
  CHECK_FALSE(choose_again(before, {device("rxe0", "DOWN")}, AddressFamily::kIpv4).has_value());
  CHECK_FALSE(choose_again(before, {device("rxe1")}, AddressFamily::kIpv4).has_value());
}

}  // namespace
}  // namespace mkernel::app
