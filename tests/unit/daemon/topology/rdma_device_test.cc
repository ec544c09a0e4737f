#include "daemon/topology/rdma_device.h"

#include <doctest/doctest.h>

#include <cerrno>

namespace mkernel::topology {
namespace {

RdmaPort active_port(LinkLayer layer) {
  RdmaPort port{.state = "ACTIVE", .physical_state = "LinkUp", .link_layer = layer};
  port.gids = {
      {.index = 0, .bytes = *Gid::parse("fe80:0000:0000:0000:0a00:27ff:fe14:c0de"), .type = GidType::kRoceV1},
      {.index = 1,
       .bytes = *Gid::parse("0000:0000:0000:0000:0000:ffff:0a00:0107"),
       .type = GidType::kRoceV2}};
  return port;
}

RdmaDevice device() {
  return {.name = "mlx5_0", .file = {"/dev/infiniband/uverbs0", 0}};
}

bool says(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("InfiniBand uses the port's own GID, RoCE the best") {
  CHECK(choose_gid(active_port(LinkLayer::kInfiniband), AddressFamily::kIpv4)->index == 0);
  CHECK(choose_gid(active_port(LinkLayer::kEthernet), AddressFamily::kIpv4)->index == 1);
  CHECK(choose_gid(RdmaPort{}, AddressFamily::kIpv4) == nullptr);
}

TEST_CASE("a port that is up, with an address and a file that opens, is usable") {
  CHECK(not_usable(device(), active_port(LinkLayer::kEthernet)).empty());
}

TEST_CASE("what is in the way is named, with what to do") {
  RdmaDevice d = device();
  RdmaPort p = active_port(LinkLayer::kEthernet);
  SUBCASE("no module") {
    d.file = {};
    CHECK(says(not_usable(d, p), "ib_uverbs"));
  }
  SUBCASE("no file in the container") {
    d.file.error = ENOENT;
    CHECK(says(not_usable(d, p), "/dev/infiniband/uverbs0 is not there"));
  }
  SUBCASE("no permission") {
    d.file.error = EACCES;
    CHECK(says(not_usable(d, p), "may not be opened"));
  }
  SUBCASE("another error") {
    d.file.error = EIO;
    CHECK(says(not_usable(d, p), "Input/output error"));
  }
  SUBCASE("taken down") {
    p.state = "DOWN", p.physical_state = "Disabled";
    CHECK(says(not_usable(d, p), "port is DOWN (Disabled)"));
    CHECK(says(not_usable(d, p), "ip link"));
  }
  SUBCASE("no cable") {
    p.state = "DOWN", p.physical_state = "Polling";
    CHECK(says(not_usable(d, p), "cable"));
  }
  SUBCASE("no subnet manager") {
    p.state = "INIT";
    CHECK(says(not_usable(d, p), "subnet manager"));
  }
  SUBCASE("no address") {
    p.gids.clear();
    CHECK(says(not_usable(d, p), "no GID"));
  }
}

}  // namespace
}  // namespace mkernel::topology
