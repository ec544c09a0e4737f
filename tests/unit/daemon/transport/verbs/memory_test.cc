// What is registered, for how long, and what is said when it cannot be.
#include "tests/unit/daemon/transport/verbs/pair.h"

namespace mkernel::test {
namespace {

std::uint64_t registered(TransportPair& pair, const std::string& host) {
  return fabric_of(pair).registered(device_of(host, 0)) + fabric_of(pair).registered(device_of(host, 1));
}

TEST_CASE("a region that is unregistered is held until the sender can no longer write to it") {
  TransportPair pair;
  const auto ends = pair.stream(pair.a(), 100, 4, 4096, always(4096));
  REQUIRE(pair.run(Threads::kOne) == "");
  memory::Region& region = pair.b().region(pair.b().region_of(ends.in));
  CHECK(pair.b().transport().holds(region));
  const std::uint64_t before = registered(pair, "node-b");
  pair.b().transport().retire(region);
  pair.b().transport().poll();
  CHECK(pair.b().transport().holds(region));  // the sender has not heard of it
  CHECK(pair.run_until([&] { return !pair.b().transport().holds(region); }));
  CHECK(registered(pair, "node-b") == before - region.bytes);
}

// The sender once said nothing about a channel that it had closed: the region was held until the receiving
// rank left its group, and whoever waited for it to be unregistered waited for ever.
TEST_CASE("a region is not held for a sender that has closed its channel") {
  for (const bool closed_first : {true, false}) {
    CAPTURE(closed_first);
    TransportPair pair;
    const auto ends = pair.stream(pair.a(), 1000000, 4, 4096, always(4096));
    REQUIRE(pair.run_until([&] { return pair.b().arrived(ends.in) > 20; }));
    memory::Region& region = pair.b().region(pair.b().region_of(ends.in));
    REQUIRE(pair.b().transport().holds(region));
    if (closed_first) {
      pair.a().close_channel(ends.out);
      pair.pump(10);
      CHECK_FALSE(pair.b().transport().holds(region));
    }
    pair.b().transport().retire(region);
    if (!closed_first) pair.a().close_channel(ends.out);  // before it has heard of it
    CHECK(pair.run_until([&] { return !pair.b().transport().holds(region); }, std::chrono::seconds(5)));
    CHECK(registered(pair, "node-b") == 0);
  }
}

TEST_CASE("puts that are on their way when a region is taken back arrive before it goes") {
  TransportPair pair;
  fabric_of(pair).every_path({.latency = std::chrono::milliseconds(5)});
  const auto ends = pair.stream(pair.a(), 1000000, 8, 4096, always(4096));
  REQUIRE(pair.run_until([&] { return pair.b().arrived(ends.in) > 20; }));
  memory::Region& region = pair.b().region(pair.b().region_of(ends.in));
  pair.b().transport().retire(region);
  pair.a().stop();
  // What was not sent yet asks again where the region is; Node grants it.
  CHECK(pair.run(Threads::kOne) == "");
}

TEST_CASE("closed channels leave nothing registered that peers can write to") {
  TransportPair pair;
  const auto one = pair.stream(pair.a(), 100, 4, 4096, always(4096));
  const auto two = pair.stream(pair.a(), 100, 4, 4096, always(4096));
  REQUIRE(pair.run(Threads::kOne) == "");
  pair.b().close_channel(one.in);
  CHECK(registered(pair, "node-b") > 0);
  pair.b().close_channel(two.in);
  CHECK(registered(pair, "node-b") == 0);
  pair.a().close_channel(one.out);
  pair.a().close_channel(two.out);
  pair.a().transport().forget(pair.a().source_of(one.out));
  pair.a().transport().forget(pair.a().source_of(two.out));
  CHECK(registered(pair, "node-a") == 0);
}

TEST_CASE("memory that cannot be registered fails its channel, with the device and what to do") {
  for (const bool at_sender : {true, false}) {
    TransportPair pair;
    const auto healthy = pair.stream(pair.a(), 10, 4, 4096, always(4096));
    REQUIRE(pair.run(Threads::kOne) == "");
    const auto ends = pair.stream(pair.a(), 10, 4, 4096, always(4096));
    pair.pump();
    const std::string device = device_of(at_sender ? "node-a" : "node-b", 0);
    fabric_of(pair).fail_registrations(device, ENOMEM, 1);
    REQUIRE(pair.run_until([&] { return !pair.a().channel_status(ends.out).ok(); }));
    const Status why = pair.a().channel_status(ends.out);
    CHECK(why.code() == StatusCode::kResourceExhausted);
    CHECK_MESSAGE(contains(why.text(), device + ": registering"), why.text());
    CHECK(pair.a().channel_status(healthy.out).ok());
    CHECK(pair.violation() == "");
  }
}

TEST_CASE("puts across the pieces that a region is registered in") {
  TransportPair pair;  // pieces of 1 MiB
  const auto ends = pair.stream(pair.a(), 40, 3, 3U << 20, random_lengths(3U << 20, 5));
  CHECK(pair.run(Threads::kOne) == "");
  CHECK(pair.b().arrived(ends.in) == 40);
}

}  // namespace
}  // namespace mkernel::test
