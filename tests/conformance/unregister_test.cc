// "Unregistered" means that nothing writes there any more, and that nothing is read from there: what holds()
// says after retire().
#include <cstring>

#include "tests/conformance/suite.h"

namespace mkernel::test {
namespace {

constexpr std::uint64_t kEndless = 1ULL << 40;
constexpr std::uint32_t kPutBytes = 1U << 20;
constexpr int kMarker = 0x77;

bool all_marker(const memory::Region& region) {
  const std::byte* bytes = region.host(0);
  return bytes[0] == std::byte{kMarker} && std::memcmp(bytes, bytes + 1, region.bytes - 1) == 0;
}

TEST_CASE("once no transport holds an unregistered target, nothing is written there any more") {
  for (const int pumps : {0, 1, 2, 5, 20}) {
    CAPTURE(pumps);
    TransportPair pair;
    const auto doomed = pair.stream(pair.a(), kEndless, 4, kPutBytes, always(kPutBytes));
    const auto other = pair.stream(pair.a(), kEndless, 8, 2048, random_lengths(2048, 4));
    REQUIRE(pair.run_until([&] { return pair.b().arrived(doomed.in) > 2; }));
    pair.pump(pumps);
    memory::Region& target = pair.b().region(pair.b().region_of(doomed.in));
    pair.b().retire(target);
    REQUIRE(pair.run_until([&] { return !pair.b().in_use(target); }));
    std::memset(target.host(0), kMarker, target.bytes);
    pair.b().transport().forget(target);
    // The sender has not heard, or has puts under way: they come, and go nowhere.
    const std::uint64_t before = pair.b().arrived(other.in);
    CHECK(pair.run_until([&] { return pair.b().arrived(other.in) > before + 500; }));
    CHECK(pair.run_until([&] { return !pair.a().channel_status(doomed.out).ok(); }));
    pair.pump(200);
    CHECK(all_marker(target));
    CHECK(pair.violation() == "");
    CHECK(pair.a().peer_status().ok());
  }
}

TEST_CASE("once no transport holds an unregistered source, nothing is read from there any more") {
  for (const int pumps : {0, 1, 2, 5}) {
    CAPTURE(pumps);
    TransportPair pair;
    const auto doomed = pair.stream(pair.a(), kEndless, 4, kPutBytes, always(kPutBytes));
    REQUIRE(pair.run_until([&] { return pair.b().arrived(doomed.in) > 2; }));
    pair.pump(pumps);
    memory::Region& source = pair.a().source_of(doomed.out);
    pair.a().retire(source);
    REQUIRE(pair.run_until([&] { return !pair.a().in_use(source); }));
    std::memset(source.host(0), kMarker, source.bytes);
    pair.a().transport().forget(source);
    // Every put that was sent before arrives whole: Node verifies it.
    const std::uint64_t sent = pair.a().submitted(doomed.out);
    CHECK(pair.run_until([&] { return pair.b().arrived(doomed.in) == sent; }));
    pair.pump(200);
    CHECK(pair.violation() == "");
    CHECK(pair.a().channel_status(doomed.out).ok());
  }
}

TEST_CASE("a target that is unregistered while its connection is away is let go of, and stays as it is") {
  TransportPair pair;
  if (!can_inject(pair, Fault::kCut, "lose its connection")) return;
  const auto doomed = pair.stream(pair.a(), kEndless, 4, kPutBytes, always(kPutBytes));
  REQUIRE(pair.run_until([&] { return pair.b().arrived(doomed.in) > 2; }));
  pair.wire().cut(pair.a());
  memory::Region& target = pair.b().region(pair.b().region_of(doomed.in));
  pair.b().retire(target);
  pair.pump(50);
  pair.wire().heal(pair.a());
  REQUIRE(pair.run_until([&] { return !pair.b().in_use(target); }));
  std::memset(target.host(0), kMarker, target.bytes);
  pair.b().transport().forget(target);
  CHECK(pair.run_until([&] { return !pair.a().channel_status(doomed.out).ok(); }));
  pair.pump(200);
  CHECK(all_marker(target));
  CHECK(pair.violation() == "");
}

}  // namespace
}  // namespace mkernel::test
