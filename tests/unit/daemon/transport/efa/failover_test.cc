// Two devices at each end: channels move to the other ones, replay, and come back.
#include <array>
#include <random>

#include "tests/unit/daemon/transport/efa/pair.h"

namespace mkernel::test {

std::unique_ptr<Wire> make_wire() {
  return std::make_unique<EfaWire>(2);
}

namespace {

constexpr nic::Path kWorks{.latency = std::chrono::microseconds(10), .jitter = std::chrono::microseconds(60)};
constexpr nic::Path kLosesAll{.down = true};

/// Between device i of the first node and device k of the second, both ways.
void set_path(TransportPair& pair, int i, int k, const nic::Path& path) {
  fabric_of(pair).set_paths(device_of("node-a", i), device_of("node-b", k), path);
}

void set_every_path(TransportPair& pair, const nic::Path& path) {
  for (const int i : {0, 1}) {
    for (const int k : {0, 1}) set_path(pair, i, k, path);
  }
}

std::uint64_t received_by_b(TransportPair& pair, int i) {
  return fabric_of(pair).received(device_of("node-b", i));
}

std::uint64_t registered(TransportPair& pair, const std::string& host, int i) {
  return fabric_of(pair).registered(device_of(host, i));
}

bool goes_on(TransportPair& pair, ChannelId in, std::uint64_t puts = 500) {
  const std::uint64_t before = pair.b().arrived(in);
  return pair.run_until([&] { return pair.b().arrived(in) > before + puts; });
}

void check_the_end(TransportPair& pair) {
  pair.a().stop();
  pair.b().stop();
  CHECK(pair.run(Threads::kOne) == "");
}

TEST_CASE("all traffic takes the first devices while they work, and nothing is registered with the others") {
  TransportPair pair;
  pair.stream(pair.a(), 500, 16, 2048, always(2048));
  CHECK(pair.run(Threads::kOne) == "");
  CHECK(received_by_b(pair, 0) >= 500);
  CHECK(received_by_b(pair, 1) == 0);
  CHECK(registered(pair, "node-a", 1) == 0);
  CHECK(registered(pair, "node-b", 1) == 0);
}

/// What the end was told last is that its puts go over this device of its own.
bool uses(TransportPair& pair, const Node& node, int i) {
  const std::string host = &node == &pair.a() ? "node-a" : "node-b";
  return !node.paths().empty() && !node.path_lost() && contains(node.paths().back().path, device_of(host, i));
}

TEST_CASE("a route that is lost is replaced by the next, and is used again once it works") {
  for (const char* const end : {"", "node-a", "node-b"}) {
    CAPTURE(end);
    TransportPair pair;
    const auto cut = [&](bool down) {
      if (*end == 0) return set_path(pair, 0, 0, down ? kLosesAll : kWorks);
      fabric_of(pair).set_port(device_of(end, 0), 1, down ? IBV_PORT_DOWN : IBV_PORT_ACTIVE);
    };
    const auto ends = pair.stream(pair.a(), 1000000, 16, 2048, always(2048));
    pair.stream(pair.b(), 1000000, 16, 2048, always(2048));
    REQUIRE(goes_on(pair, ends.in));
    CHECK(received_by_b(pair, 1) == 0);

    cut(true);
    REQUIRE(pair.run_until([&] { return received_by_b(pair, 1) > 1000; }));
    CHECK(registered(pair, "node-a", 0) == 0);  // every key of the connection went with it
    CHECK(registered(pair, "node-b", 0) == 0);
    CHECK(registered(pair, "node-b", 1) > 0);
    REQUIRE(goes_on(pair, ends.in));
    CHECK(uses(pair, pair.a(), 1));
    CHECK(uses(pair, pair.b(), 1));

    cut(false);
    const std::uint64_t first = received_by_b(pair, 0);
    REQUIRE(pair.run_until([&] { return received_by_b(pair, 0) > first + 1000; }));
    CHECK(registered(pair, "node-b", 1) == 0);
    for (const Node* const node : {&pair.a(), &pair.b()}) {
      CHECK(uses(pair, *node, 0));
      REQUIRE(node->paths().size() == 3);  // the first lost, the second taken, the first taken again
      CHECK_FALSE(node->paths()[0].lost.ok());
      for (const char* const part : {"efa-node-a-0 port 1 (GID fe80::", "efa-node-b-0", "QPN "}) {
        CHECK_MESSAGE(contains(node->paths()[0].path, part), node->paths()[0].path);
      }
    }
    check_the_end(pair);
  }
}

TEST_CASE("what was moved breaks again in the middle of its replay, and again") {
  TransportPair pair;
  constexpr std::uint32_t kInFlight = 500;  // more than a queue pair takes at a time
  set_every_path(pair, {.latency = std::chrono::microseconds(300)});
  const auto ends = pair.stream(pair.a(), 1000000, kInFlight, 4096, always(4096));
  REQUIRE(goes_on(pair, ends.in, 100));
  // In the order in which routes are taken.
  constexpr std::array<std::array<int, 2>, 3> kRoutes{{{0, 0}, {1, 1}, {0, 1}}};
  std::uint64_t held = 0;
  for (const auto& [i, k] : kRoutes) {
    set_path(pair, i, k, kLosesAll);
    held = pair.b().arrived(ends.in);
    // The replay has begun: something of it has landed, and no more than a part of what was under way.
    REQUIRE(pair.run_until([&] { return pair.b().arrived(ends.in) > held; }));
    CHECK(pair.b().arrived(ends.in) < held + kInFlight);
  }
  CHECK(goes_on(pair, ends.in, 100));
  check_the_end(pair);
}

TEST_CASE("routes fail again and again, all of them for a while: every put arrives once and whole") {
  TransportPair pair;
  std::mt19937_64 random(7);
  for (Node* node : {&pair.a(), &pair.b()}) {
    pair.stream(*node, 1ULL << 40, 4, 1U << 20, random_lengths(1U << 20, 1 + node->peer()));
    for (std::uint64_t i = 0; i < 3; ++i) {
      pair.stream(*node, 1ULL << 40, 32, 4096, random_lengths(4096, 10 * i + node->peer()));
    }
  }
  REQUIRE(pair.run_until([&] { return pair.a().connected() && pair.b().connected(); }));
  std::array<int, 2> in_use{};
  for (int pull = 0; pull < 200 && pair.violation().empty(); ++pull) {
    const std::array<std::uint64_t, 2> before{received_by_b(pair, 0), received_by_b(pair, 1)};
    const std::uint64_t lost = random() % 16;
    for (std::uint64_t route = 0; route < 4; ++route) {
      const bool down = (lost >> route & 1) != 0;
      set_path(pair, static_cast<int>(route / 2), static_cast<int>(route % 2), down ? kLosesAll : kWorks);
    }
    const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 8000);
    while (std::chrono::steady_clock::now() < end) pair.pump();
    for (const int i : {0, 1}) in_use[i] += received_by_b(pair, i) > before[i] ? 1 : 0;
  }
  // Whichever has failed more often is left alone for longer.
  CHECK(std::max(in_use[0], in_use[1]) > 20);
  CHECK(std::min(in_use[0], in_use[1]) > 1);
  set_every_path(pair, kWorks);
  check_the_end(pair);
}

TEST_CASE("a device that dies is left for good, with the others carrying on") {
  for (const char* const end : {"node-a", "node-b"}) {
    CAPTURE(end);
    TransportPair pair;
    const auto ends = pair.stream(pair.a(), 1000000, 16, 2048, always(2048));
    REQUIRE(goes_on(pair, ends.in));
    fabric_of(pair).fail_device(device_of(end, 0));
    REQUIRE(goes_on(pair, ends.in));
    CHECK(registered(pair, end, 1) > 0);
    check_the_end(pair);
  }
}

TEST_CASE("two halves of different routes still are a route") {
  TransportPair pair;
  const auto ends = pair.stream(pair.a(), 1000000, 16, 2048, always(2048));
  REQUIRE(goes_on(pair, ends.in));
  fabric_of(pair).fail_device(device_of("node-a", 0));
  fabric_of(pair).fail_device(device_of("node-b", 1));
  REQUIRE(goes_on(pair, ends.in));
  CHECK(registered(pair, "node-a", 1) > 0);
  CHECK(registered(pair, "node-b", 0) > 0);
  check_the_end(pair);
}

TEST_CASE("a first device that is down from the start: the connection is made over the second") {
  TransportPair pair({.connect = false});
  fabric_of(pair).set_port(device_of("node-b", 0), 1, IBV_PORT_DOWN);
  pair.connect_a();
  pair.connect_b();
  pair.stream(pair.a(), 100, 16, 2048, always(2048));
  CHECK(pair.run(Threads::kOne) == "");
  CHECK(received_by_b(pair, 1) >= 100);
}

TEST_CASE("a device that neither completes anything nor says why is left after a while") {
  TransportPair pair({.peer_timeout = std::chrono::milliseconds(1000)});
  constexpr std::uint32_t kInFlight = 16;  // may still come over the first device
  const auto ends = pair.stream(pair.a(), 1000000, kInFlight, 2048, always(2048));
  REQUIRE(goes_on(pair, ends.in));
  set_path(pair, 0, 0, {.latency = std::chrono::hours(1)});
  REQUIRE(goes_on(pair, ends.in, 500));
  CHECK(received_by_b(pair, 1) > 500 - kInFlight);
  set_path(pair, 0, 0, kWorks);
  check_the_end(pair);
}

TEST_CASE("with no route left the peer is given up with both ends and the cause in the text") {
  TransportPair pair({.peer_timeout = std::chrono::milliseconds(300)});
  const auto ends = pair.stream(pair.a(), 1000000, 4, 4096, always(4096));
  REQUIRE(goes_on(pair, ends.in, 3));
  set_every_path(pair, kLosesAll);
  REQUIRE(pair.run_until([&] { return !pair.a().peer_status().ok() && !pair.b().peer_status().ok(); }));
  for (Node* const node : {&pair.a(), &pair.b()}) {
    const std::string text = node->peer_status().text();
    for (const char* const part :
         {"efa-node-a-", "efa-node-b-", " port 1 (GID fe80::", "QPN ", " -> ", "(EFA status 1"}) {
      CHECK_MESSAGE(contains(text, part), text);
    }
    CHECK_MESSAGE(contains(text, "node node-" + pair.other(*node).name()), text);
  }
}

TEST_CASE("the last device of a node dies: both ends hear at once what has died") {
  TransportPair pair;
  const auto ends = pair.stream(pair.a(), 1000000, 4, 4096, always(4096));
  REQUIRE(goes_on(pair, ends.in, 3));
  fabric_of(pair).fail_device(device_of("node-b", 0));
  REQUIRE(goes_on(pair, ends.in));  // over the other: far more than were under way
  fabric_of(pair).fail_device(device_of("node-b", 1));
  const auto begin = std::chrono::steady_clock::now();
  REQUIRE(pair.run_until([&] { return !pair.a().peer_status().ok() && !pair.b().peer_status().ok(); }));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));  // not the timeout of 30 s
  for (Node* const node : {&pair.a(), &pair.b()}) {
    const std::string text = node->peer_status().text();
    // The route named is the one that died, or another that the other end has asked for by then.
    for (const char* const part :
         {"no EFA device is left here: ", " port 1 (GID fe80::", " -> efa-node-a-1 port 1 (GID fe80::",
          "efa-node-b-0: the device reported a fatal error",
          "efa-node-b-1: the device reported a fatal error"}) {
      CHECK_MESSAGE(contains(text, part), text);
    }
  }
}

TEST_CASE(
    "a region is taken back while its channel moves: it is free, and what is put there next asks again") {
  for (const bool before : {false, true}) {
    CAPTURE(before);
    TransportPair pair;
    const auto ends = pair.stream(pair.a(), 1000000, 16, 4096, always(4096));
    REQUIRE(goes_on(pair, ends.in));
    memory::Region& target = pair.b().region(pair.b().region_of(ends.in));
    const std::uint64_t asked = pair.b().begun(ends.in);  // place() is called for a region, not for every put
    if (before) pair.b().transport().retire(target);      // the other end hears of it when the route is gone
    fabric_of(pair).fail_device(device_of("node-b", 0));
    REQUIRE(pair.run_until([&] { return !pair.b().transport().holds(target); }));
    CHECK(registered(pair, "node-b", 0) == 0);
    if (!before) pair.b().transport().retire(target);
    REQUIRE(goes_on(pair, ends.in));
    CHECK(pair.b().begun(ends.in) > asked);
    CHECK(registered(pair, "node-b", 1) == target.bytes);
    // And once more, where it lies now.
    const std::uint64_t again = pair.b().begun(ends.in);
    pair.b().transport().retire(target);
    REQUIRE(pair.run_until([&] { return pair.b().begun(ends.in) > again; }));
    check_the_end(pair);
  }
}

TEST_CASE("the source of a put that no connection has taken yet is held") {
  TransportPair pair;
  set_every_path(pair, kLosesAll);
  const auto ends = pair.stream(pair.a(), 4, 4, 4096, always(4096));
  pair.pump(3);
  CHECK(!pair.a().connected());
  const memory::Region& source = pair.a().source_of(ends.out);
  CHECK(pair.a().transport().holds(source));
  set_every_path(pair, kWorks);
  CHECK(pair.run(Threads::kOne) == "");
  CHECK(pair.run_until([&] { return !pair.a().transport().holds(source); }));
}

}  // namespace
}  // namespace mkernel::test
