// The delivery contract while the wire is slow, lossy, confused or cut.
#include "tests/conformance/suite.h"

namespace mkernel::test {
namespace {

/// Mixed traffic both ways under a shape, in both thread modes; `fault` must really have happened.
void run_shaped(const LinkShape& shape, Fault fault, const std::string& what) {
  for (const Threads threads : kBothModes) {
    TransportPair pair;
    if (!can_inject(pair, fault, what)) return;
    REQUIRE(pair.wire().shape(pair.a(), shape).ok());
    REQUIRE(pair.wire().shape(pair.b(), shape).ok());
    for (std::uint64_t i = 0; i < 6; ++i) {
      pair.stream(i % 2 == 0 ? pair.a() : pair.b(), 400, 32, 4096, random_lengths(4096, i));
    }
    pair.stream(pair.a(), 2000, 200, 8, [](std::uint64_t) { return 0; });
    pair.stream(pair.b(), 8, 2, 1U << 20, random_lengths(1U << 20, 9));
    CHECK(pair.run(threads) == "");
    CHECK(pair.wire().injected(pair.a(), fault) > 0);
    CHECK(pair.wire().injected(pair.b(), fault) > 0);
  }
}

TEST_CASE("delay") {
  LinkShape shape;
  shape.latency = std::chrono::microseconds(500);
  run_shaped(shape, Fault::kDelay, "delay puts");
}

TEST_CASE("narrow bandwidth") {
  LinkShape shape;
  shape.bandwidth_gbytes = 0.1;
  shape.latency = std::chrono::microseconds(100);
  run_shaped(shape, Fault::kDelay, "delay puts");
}

TEST_CASE("reorder") {
  LinkShape shape;
  shape.reorder = 0.2;
  run_shaped(shape, Fault::kReorder, "reorder puts");
}

TEST_CASE("duplication") {
  LinkShape shape;
  shape.duplicate = 0.2;
  run_shaped(shape, Fault::kDuplicate, "send puts twice");
}

TEST_CASE("drop") {
  LinkShape shape;
  shape.drop = 0.05;
  run_shaped(shape, Fault::kDrop, "drop puts");
}

TEST_CASE("reorder, duplication and drop across the wrap of the sequence") {
  for (const Threads threads : kBothModes) {
    TransportPair pair;
    if (!can_inject(pair, Fault::kReorder, "reorder puts")) return;
    LinkShape shape;
    shape.reorder = 0.05;
    shape.duplicate = 0.05;
    shape.drop = 0.0005;
    REQUIRE(pair.wire().shape(pair.a(), shape).ok());
    const std::uint64_t puts = 2 * 65536 + 99;
    const auto ends = pair.stream(pair.a(), puts, 900, 8,
                                  [](std::uint64_t n) { return static_cast<std::uint32_t>(n % 9); });
    CHECK(pair.run(threads) == "");
    CHECK(pair.b().arrived(ends.in) == puts);
  }
}

TEST_CASE("a connection cut in the middle of a 4 MiB put, and again during its replay") {
  TransportPair pair;
  if (!can_inject(pair, Fault::kCut, "lose its connection")) return;
  if (!pair.wire().announces_puts()) {
    MESSAGE("transport " << pair.wire().name()
                         << ": its receiver is not told when a put begins, see its tests");
    return;
  }
  const auto ends = pair.stream(pair.a(), 3, 3, 4U << 20, [](std::uint64_t) { return 4U << 20; });
  int in_the_middle = 0;
  for (int cut = 0; cut < 8; ++cut) {
    const std::uint64_t begun = pair.b().begun(ends.in);
    const std::uint64_t arrived = pair.b().arrived(ends.in);
    REQUIRE(pair.run_until([&] { return pair.b().begun(ends.in) > begun; }));
    if (pair.b().arrived(ends.in) == arrived) ++in_the_middle;
    if (pair.b().arrived(ends.in) > 1) break;
    Node& cutter = cut % 2 == 0 ? pair.a() : pair.b();
    pair.wire().cut(cutter);
    pair.pump(5);
    pair.wire().heal(cutter);
  }
  CHECK(in_the_middle >= 2);
  CHECK(pair.run(Threads::kOne) == "");
  CHECK(pair.b().arrived(ends.in) == 3);
  CHECK(pair.b().begun(ends.in) > 3);  // some were done again
}

TEST_CASE("a link that stays down is given up by both ends, each naming the other") {
  TransportPair pair({.peer_timeout = std::chrono::milliseconds(400)});
  if (!can_inject(pair, Fault::kCut, "lose its connection")) return;
  const auto ends = pair.stream(pair.a(), 1000000, 4, 4096, [](std::uint64_t) { return 4096; });
  REQUIRE(pair.run_until([&] { return pair.b().arrived(ends.in) > 3; }));
  pair.wire().cut(pair.a());
  const auto given_up = [&] { return !pair.a().peer_status().ok() && !pair.b().peer_status().ok(); };
  CHECK(pair.run_until(given_up, std::chrono::seconds(20)));
  CHECK(pair.a().peer_status().text().find("node-b") != std::string::npos);
  CHECK(pair.b().peer_status().text().find("node-a") != std::string::npos);
  CHECK(pair.violation() == "");
}

TEST_CASE("many cuts at random moments, from both ends: every put arrives exactly once") {
  for (const Threads threads : kBothModes) {
    TransportPair pair;
    if (!can_inject(pair, Fault::kCut, "lose its connection")) return;
    // However fast the machine is, the traffic lasts until the cuts have come.
    constexpr std::uint64_t kEndless = 1ULL << 40, kCuts = 8;
    const auto least = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
    for (Node* node : {&pair.a(), &pair.b()}) {
      const int mean_pumps = node == &pair.a() ? 60 : 90;
      node->disturb = [&pair, least, cuts = random_cuts(pair.wire(), node->peer(), mean_pumps)](Node& self) {
        cuts(self);
        if (std::chrono::steady_clock::now() < least) return;
        if (pair.wire().injected(self, Fault::kCut) >= kCuts) self.stop();
      };
      pair.stream(*node, kEndless, 2, 4U << 20, random_lengths(4U << 20, node->peer()));
      for (std::uint64_t i = 0; i < 2; ++i)
        pair.stream(*node, kEndless, 16, 2048, random_lengths(2048, 10 + 2 * i + node->peer()));
    }
    CHECK(pair.run(threads) == "");
    CHECK(pair.wire().injected(pair.a(), Fault::kCut) >= kCuts);
  }
}

TEST_CASE("soak: every fault the transport can inject, all at once, for a few seconds") {
  TransportPair pair;
  LinkShape shape;
  if (pair.wire().can(Fault::kDelay)) shape.latency = std::chrono::microseconds(200);
  if (pair.wire().can(Fault::kDrop)) shape.drop = 0.01;
  if (pair.wire().can(Fault::kDuplicate)) shape.duplicate = 0.05;
  if (pair.wire().can(Fault::kReorder)) shape.reorder = 0.05;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(4);
  constexpr std::uint64_t kEndless = 1ULL << 40;
  for (Node* node : {&pair.a(), &pair.b()}) {
    if (pair.wire().can(Fault::kDelay)) REQUIRE(pair.wire().shape(*node, shape).ok());
    std::function<void(Node&)> cuts = [](Node&) {};
    if (pair.wire().can(Fault::kCut)) cuts = random_cuts(pair.wire(), 77 + node->peer(), 400);
    node->disturb = [cuts, end](Node& self) {
      cuts(self);
      if (std::chrono::steady_clock::now() > end) self.stop();
    };
    for (std::uint64_t i = 0; i < 8; ++i) {
      pair.stream(*node, kEndless, 64, 16384, random_lengths(16384, 50 + i + node->peer()));
    }
    pair.stream(*node, kEndless, 2, 4U << 20, random_lengths(4U << 20, node->peer()));
    pair.stream(*node, kEndless, 256, 8, [](std::uint64_t) { return 0; });
  }
  CHECK(pair.run(Threads::kTwo) == "");
}

}  // namespace
}  // namespace mkernel::test
