#include "tools/mkctl/doctor/acs.h"

#include <doctest/doctest.h>

namespace mkernel::mkctl::doctor {
namespace {

/// A configuration space with a list of two capabilities: device serial number, then ACS.
std::vector<std::uint8_t> bridge(std::uint16_t acs_control) {
  std::vector<std::uint8_t> config(4096, 0);
  const auto put = [&](std::size_t at, std::uint32_t value, int bytes) {
    for (int i = 0; i < bytes; ++i)
      config[at + static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(value >> (8 * i));
  };
  put(0x100, 0x0003U | 1U << 16 | 0x148U << 20, 4);
  put(0x148, 0x000dU | 1U << 16, 4);
  put(0x14e, acs_control, 2);
  return config;
}

TEST_CASE("redirection of requests or completions counts, the rest does not") {
  CHECK(acs_redirects(bridge(0)) == false);
  CHECK(acs_redirects(bridge(0x1d)) == true);  // what Linux sets with an IOMMU
  CHECK(acs_redirects(bridge(1 << 2)) == true);
  CHECK(acs_redirects(bridge(1 << 3)) == true);
  CHECK(acs_redirects(bridge(0x33)) == false);  // validation, blocking, forwarding, egress control
}

TEST_CASE("a bridge without ACS redirects nothing") {
  std::vector<std::uint8_t> config = bridge(0x1d);
  config[0x102] = config[0x103] = 0;  // the list ends before it
  CHECK(acs_redirects(config) == false);
}

TEST_CASE("what is cut short or broken says nothing") {
  std::vector<std::uint8_t> config = bridge(0x1d);
  CHECK(acs_redirects({}) == std::nullopt);
  config.resize(64);  // what the kernel shows to others than root
  CHECK(acs_redirects(config) == std::nullopt);
  config = bridge(0x1d);
  config.resize(0x14e);
  CHECK(acs_redirects(config) == std::nullopt);
  config = bridge(0x1d);
  config[0x102] = 0x01, config[0x103] = 0x10;  // points to itself
  CHECK(acs_redirects(config) == std::nullopt);
  config[0x102] = 0x01, config[0x103] = 0x04;  // points below the extended space
  CHECK(acs_redirects(config) == std::nullopt);
  CHECK(acs_redirects(std::vector<std::uint8_t>(4096, 0xff)) == std::nullopt);  // the device is gone
}

}  // namespace
}  // namespace mkernel::mkctl::doctor
