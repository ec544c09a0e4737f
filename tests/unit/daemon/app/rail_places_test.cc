// Where the rails of a node lie, on a machine with eight GPUs and a NIC behind the switch of each.
#include "daemon/app/rail_places.h"

#include <doctest/doctest.h>

#include "daemon/topology/rdma_sysfs.h"
#include "proto/abi/messages.h"
#include "tests/unit/daemon/topology/machines.h"

namespace mkernel::app {
namespace {

topology::Node dgx(const std::vector<std::string>& chosen = {}) {
  topology::SysfsTree tree;
  topology::Dgx::devices(tree);
  auto machine = topology::machine_from_xml(topology::Dgx::xml());
  REQUIRE_MESSAGE(machine.ok(), machine.status().to_string());
  return topology::make_node(*machine, topology::rdma_devices(tree.path), chosen);
}

/// Of the fourth GPU, 0000:61:00.0, and of the last, 0000:df:00.0.
constexpr std::uint64_t kFourth = abi::pci_address(0, 0x61, 0, 0), kLast = abi::pci_address(0, 0xdf, 0, 0);

const std::vector<std::string> kPorts{"mlx5_0:1", "mlx5_3:1", "mlx5_4:1",  "mlx5_5:1",
                                      "mlx5_6:1", "mlx5_9:1", "mlx5_10:1", "mlx5_11:1"};

TEST_CASE("each rail has a port of its own, the CPUs near it, and the GPU that is behind the same switch") {
  const RailPlaces places = places_of(dgx(), kPorts, 8);
  REQUIRE(places.rails.size() == 8);
  CHECK(places.rails[3].port == "mlx5_5:1");
  CHECK(places.rails[3].cpus.front() == 0);
  CHECK(places.rails[7].cpus.front() == 56);
  CHECK(places.of_gpu.size() == 8);
  CHECK(places.of_gpu.at(kFourth) == 1U << 3);
  CHECK(places.of_gpu.at(kLast) == 1U << 7);
}

TEST_CASE("more rails than ports begin again with the first, fewer leave GPUs without") {
  const RailPlaces twice = places_of(dgx(), kPorts, 16);
  CHECK(twice.rails[11].port == "mlx5_5:1");
  CHECK(twice.of_gpu.at(kFourth) == (1U << 3 | 1U << 11));
  const RailPlaces half = places_of(dgx(), kPorts, 4);
  CHECK(half.of_gpu.at(kFourth) == 1U << 3);
  CHECK(half.of_gpu.count(kLast) == 0);
}

TEST_CASE("a port that the placement gives and that is no rail moves the numbers of those behind it") {
  const RailPlaces places = places_of(dgx(), {kPorts.begin() + 1, kPorts.end()}, 7);
  CHECK(places.rails[2].port == "mlx5_5:1");
  CHECK(places.of_gpu.size() == 7);
  CHECK(places.of_gpu.at(kFourth) == 1U << 2);
}

TEST_CASE("topology.nics decides what GPUs are given") {
  const RailPlaces places = places_of(dgx({"mlx5_11", "mlx5_5"}), {"mlx5_5:1", "mlx5_11:1"}, 2);
  CHECK(places.of_gpu.size() == 8);  // shared
  CHECK(places.of_gpu.at(kFourth) == 0b01);
  CHECK(places.of_gpu.at(kLast) == 0b10);
}

}  // namespace
}  // namespace mkernel::app
