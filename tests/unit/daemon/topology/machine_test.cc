#include "daemon/topology/machine.h"

#include <doctest/doctest.h>

#include "tests/unit/daemon/topology/machines.h"

namespace mkernel::topology {
namespace {

TEST_CASE("this machine has CPUs") {
  const auto here = this_machine();
  REQUIRE_MESSAGE(here.ok(), here.status().to_string());
  REQUIRE(!here.value().numa_nodes.empty());
  CHECK(!here.value().numa_nodes.front().cpus.empty());
}

TEST_CASE("the way from the CPU to a GPU, as sysfs names it") {
  const auto dgx = machine_from_xml(Dgx::xml());
  REQUIRE_MESSAGE(dgx.ok(), dgx.status().to_string());
  const auto& devices = dgx.value().devices;
  REQUIRE(devices.size() == 20);
  CHECK(devices[0].address == "0000:18:00.0");
  CHECK(devices[0].vendor == 0x15b3);
  CHECK(devices[0].model == "ConnectX-7");
  CHECK(devices[1].address == "0000:1b:00.0");
  CHECK(devices[1].device_class == 0x0302);
  CHECK(devices[1].place.numa_node == 0);
  CHECK(devices[1].place.bridges == std::vector<std::string>{"pci0000:15", "0000:15:01.0", "0000:16:00.0",
                                                             "0000:17:01.0", "0000:19:00.0", "0000:1a:00.0"});
}

TEST_CASE("what is no machine is refused") {
  for (const char* text : {"", "no XML", "<topology version=\"2.0\">"}) {
    CAPTURE(text);
    const auto read = machine_from_xml(text);
    CHECK(!read.ok());
    CHECK(read.status().code() == StatusCode::kInvalidArgument);
  }
}

TEST_CASE("distances") {
  const PciPlace gpu{0, {"pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:01.0"}};
  const auto far = [&](const PciPlace& other) { return std::string(name_of(distance(gpu, other))); };
  CHECK(far({0, {"pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:00.0"}}) == "PIX");
  CHECK(far(gpu) == "PIX");  // two functions of a card
  CHECK(far({0, {"pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:02.0", "0000:19:00.0"}}) == "PXB");
  CHECK(far({0, {"pci0000:15", "0000:15:03.0"}}) == "PHB");
  CHECK(far({0, {"pci0000:37", "0000:37:01.0"}}) == "NODE");
  CHECK(far({0, {}}) == "NODE");
  CHECK(far({1, {"pci0000:97", "0000:97:01.0"}}) == "SYS");
  CHECK(far({-1, {}}) == "SYS");
  CHECK(distance({-1, {}}, {-1, {}}) == Distance::kSys);  // two unknowns are not near each other
}

}  // namespace
}  // namespace mkernel::topology
