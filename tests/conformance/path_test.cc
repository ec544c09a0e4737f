// What a transport tells of its paths: each loss once, the end of each loss once, and nothing else.
#include "tests/conformance/suite.h"

namespace mkernel::test {
namespace {

constexpr std::uint64_t kEndless = 1ULL << 40;

/// Small puts both ways, so that either end notices that the wire is cut.
void start_traffic(TransportPair& pair) {
  for (Node* node : {&pair.a(), &pair.b()}) {
    for (std::uint64_t i = 0; i < 4; ++i) {
      pair.stream(*node, kEndless, 16, 2048, random_lengths(2048, 4 * i + node->peer()));
    }
  }
}

TEST_CASE("a wire that nobody touches is silent") {
  for (const Threads threads : kBothModes) {
    TransportPair pair;
    for (std::uint64_t i = 0; i < 6; ++i) {
      pair.stream(i % 2 == 0 ? pair.a() : pair.b(), 300, 32, 4096, random_lengths(4096, i));
    }
    CHECK(pair.run(threads) == "");
    CHECK(pair.a().paths().empty());
    CHECK(pair.b().paths().empty());
  }
}

TEST_CASE("a cut is told once, by both ends, whatever fails until it is healed; and so is its end") {
  TransportPair pair;
  if (!can_inject(pair, Fault::kCut, "lose its connection")) return;
  start_traffic(pair);
  REQUIRE(pair.run_until([&] { return pair.a().connected() && pair.b().connected(); }));
  for (std::size_t cut = 0; cut < 6; ++cut) {
    CAPTURE(cut);
    Node& cutter = cut % 3 == 2 ? pair.b() : pair.a();
    REQUIRE(pair.run_until([&] { return pair.wire().may_cut(); }));
    pair.wire().cut(cutter);
    REQUIRE(pair.run_until([&] { return pair.a().path_lost() && pair.b().path_lost(); }));
    // Long enough to fail at connecting again and again.
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(60);
    pair.run_until([&] { return std::chrono::steady_clock::now() > until; });
    for (const Node* node : {&pair.a(), &pair.b()}) {
      CHECK(node->paths().size() == 2 * cut + 1);
      CHECK_FALSE(node->paths().back().lost.text().empty());
    }
    pair.wire().heal(cutter);
    REQUIRE(pair.run_until([&] { return !pair.a().path_lost() && !pair.b().path_lost(); }));
    for (const Node* node : {&pair.a(), &pair.b()}) CHECK(node->paths().size() == 2 * cut + 2);
  }
  pair.a().stop();
  pair.b().stop();
  CHECK(pair.run(Threads::kOne) == "");
}

TEST_CASE("a path that is never there again ends with the peer, told once") {
  TransportPair pair({.peer_timeout = std::chrono::milliseconds(400)});
  if (!can_inject(pair, Fault::kCut, "lose its connection")) return;
  start_traffic(pair);
  REQUIRE(pair.run_until([&] { return pair.a().connected() && pair.b().connected(); }));
  pair.wire().cut(pair.a());
  const auto given_up = [&] { return !pair.a().peer_status().ok() && !pair.b().peer_status().ok(); };
  CHECK(pair.run_until(given_up, std::chrono::seconds(20)));
  CHECK(pair.a().paths().size() == 1);
  CHECK(pair.b().paths().size() == 1);
  CHECK(pair.violation() == "");
}

}  // namespace
}  // namespace mkernel::test
