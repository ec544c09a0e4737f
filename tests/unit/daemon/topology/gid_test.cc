#include "daemon/topology/gid.h"

#include <doctest/doctest.h>

namespace mkernel::topology {
namespace {

constexpr const char* kIpv4 = "0000:0000:0000:0000:0000:ffff:0a00:0107";
constexpr const char* kIpv6 = "2001:0db8:0000:0000:0000:0000:0000:0007";
constexpr const char* kLinkLocal = "fe80:0000:0000:0000:0a00:27ff:fe14:c0de";

Gid gid(std::uint32_t index, const char* text, GidType type) {
  const auto bytes = Gid::parse(text);
  REQUIRE(bytes);
  return {.index = index, .bytes = *bytes, .type = type};
}

TEST_CASE("addresses are read as sysfs writes them, told as people write them") {
  const Gid four = gid(0, kIpv4, GidType::kRoceV2), six = gid(1, kIpv6, GidType::kRoceV2),
            local = gid(2, kLinkLocal, GidType::kRoceV2);
  CHECK(four.text() == "::ffff:10.0.1.7");
  CHECK(six.text() == "2001:db8::7");
  CHECK(four.ipv4());
  CHECK(!six.ipv4());
  CHECK(local.link_local());
  CHECK(!six.link_local());
  CHECK(gid(3, "0000:0000:0000:0000:0000:0000:0000:0000", GidType::kRoceV2).empty());
  CHECK(!four.empty());
}

TEST_CASE("what is no address is none") {
  for (const char* text :
       {"", "fe80::1", "fe80:0000:0000:0000:0a00:27ff:fe14", "fe80:0000:0000:0000:0a00:27ff:fe14:c0dg",
        "fe80 0000:0000:0000:0a00:27ff:fe14:c0de", "fe80:0000:0000:0000:0a00:27ff:fe14:c0de0",
        "fe80:0000:0000:0000:0a00:27ff:fe14: c0d"}) {
    CAPTURE(text);
    CHECK(!Gid::parse(text));
  }
}

TEST_CASE(
    "RoCE v2 before v1, routed before link-local, the wanted family before the other, low before high") {
  const std::vector<Gid> table = {gid(0, kLinkLocal, GidType::kRoceV1), gid(1, kLinkLocal, GidType::kRoceV2),
                                  gid(2, kIpv4, GidType::kRoceV1),      gid(3, kIpv4, GidType::kRoceV2),
                                  gid(4, kIpv6, GidType::kRoceV1),      gid(5, kIpv6, GidType::kRoceV2),
                                  gid(6, kIpv4, GidType::kRoceV2)};
  const auto chosen = [&](std::vector<std::uint32_t> indices, AddressFamily wanted) {
    std::vector<Gid> some;
    for (const std::uint32_t index : indices) some.push_back(table[index]);
    const Gid* best = choose_roce_gid(some, wanted);
    return best == nullptr ? -1 : static_cast<int>(best->index);
  };
  using enum AddressFamily;
  CHECK(chosen({0, 1, 2, 3, 4, 5, 6}, kIpv4) == 3);
  CHECK(chosen({6, 5, 4, 3, 2, 1, 0}, kIpv4) == 3);  // whatever the order
  CHECK(chosen({0, 1, 2, 3, 4, 5, 6}, kIpv6) == 5);
  CHECK(chosen({0, 1, 4, 5}, kIpv4) == 5);  // IPv6 is all there is
  CHECK(chosen({0, 1, 2}, kIpv4) == 1);     // v2 on this network before v1 anywhere
  CHECK(chosen({0, 2, 4}, kIpv4) == 2);
  CHECK(chosen({0}, kIpv6) == 0);
  CHECK(chosen({}, kIpv4) == -1);
}

}  // namespace
}  // namespace mkernel::topology
