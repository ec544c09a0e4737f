// Several wires between two nodes: a link takes its rail's own, and another one while that is pulled.
#include "daemon/transport/emulated/wires.h"

#include <doctest/doctest.h>

#include <random>

#include "tests/conformance/emulated_wire.h"

namespace mkernel::test {

constexpr std::uint32_t kWires = 3;

std::unique_ptr<Wire> make_wire() {
  return std::make_unique<EmulatedWire>(kWires);
}

namespace {

using transport::emulated::Wires;

EmulatedWire& wire_of(TransportPair& pair) {
  return dynamic_cast<EmulatedWire&>(pair.wire());
}

std::uint64_t connections(TransportPair& pair) {
  return wire_of(pair).injected(pair.a(), Fault::kCut) + 1;
}

TEST_CASE("a rail prefers its own wire, then those of the next rails, round the end") {
  Wires wires(2, 4);
  CHECK(wires.usable() == 4);
  for (std::uint32_t n = 0; n < 4; ++n) CHECK(wires.at(n) == (2 + n) % 4);
  wires.set({.rails_down = 0b0101});
  CHECK(wires.usable() == 2);
  CHECK(wires.at(0) == 3);
  CHECK(wires.at(1) == 1);
  CHECK_FALSE(wires.carries(2));
  CHECK_FALSE(wires.carries(4));
  wires.set({.down = true});
  CHECK(wires.usable() == 0);
  CHECK(wires.at(0) == 2);
}

TEST_CASE(
    "a pulled wire is replaced by another at once, on whichever side it was pulled, and is taken again") {
  for (const bool by_a : {true, false}) {
    TransportPair pair;
    const auto ends = pair.stream(pair.a(), 1ULL << 40, 16, 2048, [](std::uint64_t) { return 2048; });
    REQUIRE(pair.run_until([&] { return pair.b().arrived(ends.in) > 100; }));
    REQUIRE(connections(pair) == 1);
    Node& side = by_a ? pair.a() : pair.b();
    for (const std::uint64_t pulled : {0b001, 0b011, 0b111}) {
      wire_of(pair).pull(side, pulled);
      const std::uint64_t before = pair.b().arrived(ends.in);
      if (pulled == 0b111) {  // none is left
        pair.pump(2000);
        CHECK(pair.b().arrived(ends.in) <= before + 16);
      } else {
        REQUIRE(pair.run_until([&] { return pair.b().arrived(ends.in) > before + 100; }));
      }
    }
    CHECK(connections(pair) == 3);
    for (const Node* node : {&pair.a(), &pair.b()}) {  // lost three times, there again twice
      REQUIRE(node->paths().size() == 5);
      CHECK(node->paths()[0].path.starts_with("wire 0 to "));
      CHECK(node->paths()[1].path.starts_with("wire 1 to "));
      CHECK(node->paths()[3].path.starts_with("wire 2 to "));
    }
    CHECK(side.paths()[4].lost.text().find("wire 2 of the link was pulled") != std::string::npos);
    wire_of(pair).pull(side, 0b110);  // its own is back
    const std::uint64_t before = pair.b().arrived(ends.in);
    REQUIRE(pair.run_until([&] { return pair.b().arrived(ends.in) > before + 100; }));
    const std::uint64_t made = connections(pair);
    CHECK(side.paths().size() == 6);
    CHECK(side.paths().back().path.starts_with("wire 0 to "));
    wire_of(pair).pull(side, 0);  // the others are back: nobody moves
    pair.pump(200);
    CHECK(connections(pair) == made);
    pair.a().stop();
    CHECK(pair.run(Threads::kOne) == "");
  }
}

TEST_CASE(
    "wires are pulled again and again, also while puts are replayed: every put arrives once and whole") {
  TransportPair pair;
  std::mt19937_64 random(3);
  for (Node* node : {&pair.a(), &pair.b()}) {
    pair.stream(*node, 1ULL << 40, 2, 1U << 20, random_lengths(1U << 20, 1 + node->peer()));
    for (std::uint64_t i = 0; i < 3; ++i) {
      pair.stream(*node, 1ULL << 40, 32, 4096, random_lengths(4096, 10 * i + node->peer()));
    }
  }
  REQUIRE(pair.run_until([&] { return pair.a().connected() && pair.b().connected(); }));
  for (int pull = 0; pull < 500 && pair.violation().empty(); ++pull) {
    wire_of(pair).pull(pull % 2 == 0 ? pair.a() : pair.b(), random() % (1U << kWires));
    pair.pump(static_cast<int>(random() % 40));
  }
  CHECK(connections(pair) > 50);
  wire_of(pair).pull(pair.a(), 0);
  wire_of(pair).pull(pair.b(), 0);
  pair.a().stop();
  pair.b().stop();
  CHECK(pair.run(Threads::kOne) == "");
}

}  // namespace
}  // namespace mkernel::test
