// Two devices at each end: channels move to the other path, replay, and come back.
#include <random>

#include "tests/unit/daemon/transport/verbs/pair.h"

namespace mkernel::test {

std::unique_ptr<Wire> make_wire() {
  return std::make_unique<VerbsWire>(2);
}

namespace {

/// The path between the devices of this number loses everything, or works.
void set_path(TransportPair& pair, int number, bool down) {
  fabric_of(pair).set_paths(device_of("node-a", number), device_of("node-b", number), {.down = down});
}

std::uint64_t received_by_b(TransportPair& pair, int number) {
  return fabric_of(pair).received(device_of("node-b", number));
}

TEST_CASE("all traffic takes the first path while it works") {
  TransportPair pair;
  pair.stream(pair.a(), 500, 16, 2048, always(2048));
  CHECK(pair.run(Threads::kOne) == "");
  CHECK(received_by_b(pair, 0) > 0);
  CHECK(received_by_b(pair, 1) == 0);
}

TEST_CASE("a peer whose first port is dead from the start is reached over its other one") {
  for (const bool by_port : {false, true}) {
    TransportPair pair;
    CHECK(pair.b().transport().local_endpoint() ==
          device_of("node-b", 0) + ":1, " + device_of("node-b", 1) + ":1");
    if (by_port) {
      fabric_of(pair).set_port(device_of("node-b", 0), 1, IBV_PORT_DOWN);
    } else {
      for (int number = 0; number < 2; ++number) {
        fabric_of(pair).set_paths(device_of("node-a", number), device_of("node-b", 0), {.down = true});
      }
    }
    pair.stream(pair.a(), 500, 16, 2048, always(2048));
    pair.stream(pair.b(), 500, 16, 2048, always(2048));
    CHECK(pair.run(Threads::kOne) == "");
    CHECK(received_by_b(pair, 0) == 0);
    CHECK(received_by_b(pair, 1) >= 500);
  }
}

/// What the end was told last is that its puts go over the path of this number.
bool uses(const Node& node, int number) {
  return !node.paths().empty() && !node.path_lost() &&
         contains(node.paths().back().path, device_of(node.name() == "a" ? "node-a" : "node-b", number));
}

TEST_CASE("a path that is lost is replaced by the other, and is used again once it works") {
  for (const bool by_port : {false, true}) {
    TransportPair pair;
    const auto cut = [&](bool down) {
      if (!by_port) return set_path(pair, 0, down);
      fabric_of(pair).set_port(device_of("node-b", 0), 1, down ? IBV_PORT_DOWN : IBV_PORT_ACTIVE);
    };
    const auto ends = pair.stream(pair.a(), 1000000, 16, 2048, always(2048));
    pair.stream(pair.b(), 1000000, 16, 2048, always(2048));
    REQUIRE(pair.run_until([&] { return pair.b().arrived(ends.in) > 100; }));

    cut(true);
    const std::uint64_t before = pair.b().arrived(ends.in);
    REQUIRE(pair.run_until([&] { return pair.b().arrived(ends.in) > before + 1000; }));
    CHECK(received_by_b(pair, 1) >= 1000);
    REQUIRE(pair.run_until([&] { return uses(pair.a(), 1) && uses(pair.b(), 1); }));

    cut(false);
    const std::uint64_t first = received_by_b(pair, 0);
    REQUIRE(pair.run_until([&] { return received_by_b(pair, 0) > first + 1000; }));
    REQUIRE(pair.run_until([&] { return uses(pair.a(), 0) && uses(pair.b(), 0); }));
    for (const Node* node : {&pair.a(), &pair.b()}) {
      REQUIRE(node->paths().size() == 3);  // the first lost, the second taken, the first taken again
      CHECK_FALSE(node->paths()[0].lost.ok());
      CHECK(contains(node->paths()[0].path, "nic-node-a-0"));
      CHECK(contains(node->paths()[0].path, "nic-node-b-0"));
      CHECK(contains(node->paths()[0].path, "QPN "));
    }
    pair.a().stop();
    pair.b().stop();
    CHECK(pair.run(Threads::kOne) == "");
  }
}

TEST_CASE("paths fail again and again, also in the middle of a replay: every put arrives once and whole") {
  TransportPair pair;
  std::mt19937_64 random(7);
  for (int number = 0; number < 2; ++number) {
    fabric_of(pair).set_paths(device_of("node-a", number), device_of("node-b", number),
                              {.latency = std::chrono::microseconds(50)});
  }
  for (Node* node : {&pair.a(), &pair.b()}) {
    pair.stream(*node, 1ULL << 40, 4, 4U << 20, random_lengths(4U << 20, 1 + node->peer()));
    for (std::uint64_t i = 0; i < 3; ++i) {
      pair.stream(*node, 1ULL << 40, 32, 4096, random_lengths(4096, 10 * i + node->peer()));
    }
  }
  REQUIRE(pair.run_until([&] { return pair.a().connected() && pair.b().connected(); }));
  int paths_in_use[2] = {0, 0};
  for (int pull = 0; pull < 200 && pair.violation().empty(); ++pull) {
    const int number = static_cast<int>(random() % 2);
    const std::uint64_t before[2] = {received_by_b(pair, 0), received_by_b(pair, 1)};
    set_path(pair, number, true);
    const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 3000);
    while (std::chrono::steady_clock::now() < end) pair.pump();
    if (random() % 2 == 0) set_path(pair, 1 - number, true);  // the other too: nothing is left for a while
    pair.pump(static_cast<int>(random() % 20));
    set_path(pair, 1 - number, false);
    pair.pump(static_cast<int>(random() % 20));
    set_path(pair, number, false);
    for (int i = 0; i < 2; ++i) paths_in_use[i] += received_by_b(pair, i) > before[i] ? 1 : 0;
  }
  // Whichever has failed more often is left alone for longer.
  CHECK(std::max(paths_in_use[0], paths_in_use[1]) > 20);
  CHECK(std::min(paths_in_use[0], paths_in_use[1]) > 1);
  pair.a().stop();
  pair.b().stop();
  CHECK(pair.run(Threads::kOne) == "");
}

TEST_CASE("with no path left the peer is given up with both ends and the cause in the text") {
  TransportPair pair({.peer_timeout = std::chrono::milliseconds(300)});
  const auto ends = pair.stream(pair.a(), 1000000, 4, 4096, always(4096));
  REQUIRE(pair.run_until([&] { return pair.b().arrived(ends.in) > 3; }));
  set_path(pair, 0, true);
  set_path(pair, 1, true);
  REQUIRE(pair.run_until([&] { return !pair.a().peer_status().ok() && !pair.b().peer_status().ok(); }));
  const std::string text = pair.a().peer_status().text();
  CHECK_MESSAGE(contains(text, "node node-b"), text);
  CHECK_MESSAGE(contains(text, "nic-node-a-"), text);
  CHECK_MESSAGE(contains(text, "nic-node-b-"), text);
  CHECK_MESSAGE(contains(text, "GID ::ffff:10."), text);
  CHECK_MESSAGE(contains(text, "QPN "), text);
  CHECK_MESSAGE(contains(text, "retries"), text);
  CHECK(contains(pair.b().peer_status().text(), "node node-a: it has given this node up: node node-b"));
}

TEST_CASE("a device that dies is left for good, with the other path carrying on") {
  TransportPair pair;
  const auto ends = pair.stream(pair.a(), 1000000, 16, 2048, always(2048));
  REQUIRE(pair.run_until([&] { return pair.b().arrived(ends.in) > 100; }));
  fabric_of(pair).fail_device(device_of("node-a", 0));
  const std::uint64_t before = pair.b().arrived(ends.in);
  REQUIRE(pair.run_until([&] { return pair.b().arrived(ends.in) > before + 1000; }));
  pair.a().stop();
  CHECK(pair.run(Threads::kOne) == "");
}

}  // namespace
}  // namespace mkernel::test
