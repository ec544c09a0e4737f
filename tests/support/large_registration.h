// A NIC that takes its time to register a large region, while the small puts of others are under way.
#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <utility>

#include "tests/support/fake_nic/fabric.h"
#include "tests/support/transport_pair.h"

namespace mkernel::test {

/// When it is made, node A has begun to put 20 times 1 MiB, and the device holds the registration up.
class LargeRegistration {
 public:
  LargeRegistration(TransportPair& pair, nic::Fabric& fabric, std::string device)
      : other_(pair.stream(pair.a(), 1ULL << 40, 8, 4096, always(4096))),
        pair_(pair),
        fabric_(fabric),
        device_(std::move(device)) {
    REQUIRE(pair_.run_until([&] { return pair_.b().arrived(other_.in) > 100; }));
    fabric_.hold_registrations(device_, kBytes);
    began_ = std::chrono::steady_clock::now();
    large_ = pair.stream(pair.a(), 20, 8, kBytes, always(kBytes));
  }

  const TransportPair::Ends& other() const { return other_; }
  const TransportPair::Ends& large() const { return large_; }

  void others_go_on(std::uint64_t puts) {
    const std::uint64_t before = pair_.b().arrived(other_.in);
    REQUIRE(pair_.run_until([&] { return pair_.b().arrived(other_.in) > before + puts; }));
  }

  /// Others go on meanwhile, then the large puts arrive; at last their target is given back, and returned.
  memory::Region& check_that_nobody_waits() {
    others_go_on(1000);
    CHECK(std::chrono::steady_clock::now() - began_ < std::chrono::seconds(8));
    finish();
    // Held for as long as giving it back takes, and no longer.
    memory::Region& target = pair_.b().region(pair_.b().region_of(large_.in));
    pair_.b().transport().retire(target);
    CHECK(pair_.run_until([&] { return !pair_.b().transport().holds(target); }));
    return target;
  }

  /// The device goes on: what has waited for it arrives, and all traffic ends.
  void finish() {
    CHECK(pair_.b().arrived(large_.in) == 0);
    fabric_.hold_registrations(device_, 0);
    REQUIRE(pair_.run_until([&] { return pair_.b().arrived(large_.in) == 20; }));
    pair_.a().stop();
    CHECK(pair_.run(Threads::kOne) == "");
  }

 private:
  static constexpr std::uint32_t kBytes = 1U << 20;

  TransportPair::Ends other_, large_{};
  TransportPair& pair_;
  nic::Fabric& fabric_;
  const std::string device_;
  std::chrono::steady_clock::time_point began_;
};

}  // namespace mkernel::test
