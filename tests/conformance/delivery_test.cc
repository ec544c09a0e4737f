// The delivery contract on a healthy wire. Node checks every callback: see transport_pair.h.
#include "tests/conformance/suite.h"

namespace mkernel::test {
namespace {

TEST_CASE("one put arrives and completes") {
  TransportPair pair;
  const auto ends = pair.stream(pair.a(), 1, 1, 1000, always(1000));
  CHECK(pair.run(Threads::kOne) == "");
  CHECK(pair.b().arrived(ends.in) == 1);
  CHECK(pair.a().completed(ends.out) == 1);
  CHECK(pair.a().connected());
  CHECK(pair.b().connected());
}

TEST_CASE("a put of no bytes is a signal") {
  for (const Threads threads : kBothModes) {
    TransportPair pair;
    const auto ends = pair.stream(pair.a(), 1000, 64, 8, always(0));
    CHECK(pair.run(threads) == "");
    CHECK(pair.b().arrived(ends.in) == 1000);
  }
}

TEST_CASE("many channels, sizes from one byte to 4 MiB, both directions") {
  for (const Threads threads : kBothModes) {
    TransportPair pair;
    for (std::uint64_t i = 0; i < 3; ++i) {
      pair.stream(pair.a(), 12, 2, 4U << 20, random_lengths(4U << 20, i));
      pair.stream(pair.b(), 12, 2, 4U << 20, random_lengths(4U << 20, 100 + i));
    }
    for (std::uint64_t i = 0; i < 24; ++i) {
      pair.stream(i % 2 == 0 ? pair.a() : pair.b(), 200, 16, 8192, random_lengths(8192, 200 + i));
    }
    CHECK(pair.run(threads) == "");
  }
}

TEST_CASE("the largest put of a stream is 4 MiB, back to back, sources rewritten as soon as they are free") {
  for (const Threads threads : kBothModes) {
    TransportPair pair;
    pair.stream(pair.a(), 16, 2, 4U << 20, always(4U << 20));
    pair.stream(pair.b(), 16, 2, 4U << 20, always(4U << 20));
    CHECK(pair.run(threads) == "");
  }
}

TEST_CASE("puts submitted before the peer and its channel are there wait for them") {
  TransportPair pair({.connect = false});
  Stream& stream = pair.make_stream(500, 32, 512, random_lengths(512, 3));
  pair.connect_a();
  const ChannelId out = pair.a().send(stream, 0);
  for (int i = 0; i < 3; ++i) pair.a().pump();
  pair.connect_b();
  CHECK(pair.run_until([&] { return pair.a().connected() && pair.b().connected(); }));
  for (int i = 0; i < 3; ++i) pair.a().pump();
  CHECK(pair.a().completed(out) == 0);
  const ChannelId in = pair.b().receive(stream);
  REQUIRE(pair.b().region_of(in) == 0);
  CHECK(pair.run(Threads::kOne) == "");
  CHECK(pair.b().arrived(in) == 500);
}

TEST_CASE("a full window makes submit() take fewer") {
  TransportPair pair;
  const std::uint32_t window = pair.a().transport().capabilities().max_in_flight_puts;
  REQUIRE(window > 0);
  REQUIRE(window < 32768);
  const auto ends = pair.stream(pair.a(), 4 * window, 2 * window, 16, always(16));
  // The receiver does not poll: the sender must come to a stop by itself, and lose nothing by it.
  while (pair.a().refused_submits() == 0 && pair.a().violation().empty()) {
    pair.a().pump();
    REQUIRE(pair.a().completed(ends.out) == 0);
  }
  CHECK(pair.run(Threads::kOne) == "");
  CHECK(pair.b().arrived(ends.in) == 4 * window);
}

TEST_CASE("the sequence on the wire wraps, three times and more") {
  const std::uint64_t puts = 3 * 65536 + 4321;
  for (const Threads threads : kBothModes) {
    TransportPair pair;
    const auto ends = pair.stream(pair.a(), puts, 512, 16,
                                  [](std::uint64_t n) { return static_cast<std::uint32_t>(n % 17); });
    CHECK(pair.run(threads) == "");
    CHECK(pair.b().arrived(ends.in) == puts);
  }
}

TEST_CASE("a sleeping owner is woken for everything there is to do") {
  TransportPair pair;
  if (pair.wire().can(Fault::kDelay)) {
    LinkShape shape;
    shape.latency = std::chrono::microseconds(3000);
    REQUIRE(pair.wire().shape(pair.a(), shape).ok());
  }
  const auto ends = pair.stream(pair.a(), 20, 1, 100000, always(100000));
  CHECK(pair.run(Threads::kOne) == "");
  CHECK(pair.b().arrived(ends.in) == 20);
  CHECK(pair.overslept() < 3);
}

}  // namespace
}  // namespace mkernel::test
