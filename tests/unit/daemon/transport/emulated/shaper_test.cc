#include "daemon/transport/emulated/shaper.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace mkernel::transport::emulated {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

/// A shaper under a clock that the test moves.
struct Wire {
  explicit Wire(const LinkShape& shape, std::uint64_t seed = 1) : shaper(seed, faults) {
    shaper.set_shape(shape);
  }

  void offer(std::uint64_t sequence, std::uint32_t bytes = 0, ChannelId channel = 0) {
    expected += shaper.offer({channel, sequence, {.length = bytes}}, now);
  }
  /// Sequences that come out at `now`.
  std::vector<std::uint64_t> drain() {
    std::vector<std::uint64_t> out;
    while (const Parcel* parcel = shaper.front(now)) {
      out.push_back(parcel->sequence);
      arrival = from_ticks(parcel->entry.arrives);
      shaper.pop();
    }
    return out;
  }

  FaultCounters faults;
  LinkShaper shaper;
  Time now = Time{} + std::chrono::hours(1);
  std::uint32_t expected = 0;
  Time arrival;  ///< of the last that came out
};

TEST_CASE("a plain wire passes everything at once and in order") {
  Wire wire({});
  for (std::uint64_t i = 1; i <= 5; ++i) wire.offer(i, 1 << 20);
  CHECK(wire.drain() == std::vector<std::uint64_t>{1, 2, 3, 4, 5});
  CHECK(!wire.shaper.next_release().has_value());
}

TEST_CASE("bandwidth is shared by all puts, latency comes on top of it") {
  LinkShape shape;
  shape.bandwidth_gbytes = 1;  // 1 byte per nanosecond
  shape.latency = microseconds(50);
  Wire wire(shape);
  const Time begin = wire.now;
  wire.offer(1, 10000);
  wire.offer(2, 10000);
  CHECK(wire.drain() == std::vector<std::uint64_t>{1});
  CHECK(wire.arrival == begin + microseconds(60));
  CHECK(wire.shaper.next_release() == begin + microseconds(10));
  wire.now = begin + microseconds(9);
  CHECK(wire.drain().empty());
  wire.now = begin + microseconds(10);
  CHECK(wire.drain() == std::vector<std::uint64_t>{2});
  CHECK(wire.arrival == begin + microseconds(70));
  // An idle wire saves nothing up.
  wire.now = begin + milliseconds(10);
  wire.offer(3, 10000);
  CHECK(wire.drain() == std::vector<std::uint64_t>{3});
  CHECK(wire.arrival == wire.now + microseconds(60));
}

TEST_CASE("a long wire hands a put over when its first byte is 100 us from the end") {
  LinkShape shape;
  shape.bandwidth_gbytes = 1;
  shape.latency = milliseconds(3);
  Wire wire(shape);
  const Time begin = wire.now;
  wire.offer(1, 500000);
  CHECK(wire.drain().empty());
  CHECK(wire.shaper.next_release() == begin + microseconds(2900));
  wire.now = begin + microseconds(2900);
  CHECK(wire.drain() == std::vector<std::uint64_t>{1});
  CHECK(wire.arrival == begin + microseconds(3500));
}

TEST_CASE("a held put arrives no sooner than those that overtook it") {
  LinkShape shape;
  shape.latency = microseconds(50);
  shape.reorder = 1;
  Wire wire(shape);
  wire.offer(1);
  shape.reorder = 0;
  wire.shaper.set_shape(shape);
  for (std::uint64_t i = 2; i <= 40; ++i) {
    wire.now += microseconds(1);
    wire.offer(i);
    const auto out = wire.drain();
    if (out.back() == 1) {
      CHECK(wire.arrival == wire.now + microseconds(50));
      return;
    }
  }
  FAIL("it never came out");
}

TEST_CASE("a held put is overtaken, and comes out without successors too") {
  LinkShape shape;
  shape.reorder = 1;
  Wire wire(shape);
  wire.offer(1);
  CHECK(wire.drain().empty());
  REQUIRE(wire.shaper.next_release().has_value());
  shape.reorder = 0;
  wire.shaper.set_shape(shape);
  for (std::uint64_t i = 2; i <= 40; ++i) wire.offer(i);
  const auto order = wire.drain();
  CHECK(order.size() == 40);
  const auto at = std::find(order.begin(), order.end(), 1U) - order.begin();
  CHECK(at >= 1);
  CHECK(at <= 16);

  shape.reorder = 1;
  wire.shaper.set_shape(shape);
  wire.offer(41);
  wire.now = *wire.shaper.next_release();
  CHECK(wire.drain() == std::vector<std::uint64_t>{41});
}

TEST_CASE("what offer() promises comes out: drops and duplicates are accounted") {
  LinkShape shape;
  shape.drop = 0.3;
  shape.duplicate = 0.3;
  shape.reorder = 0.3;
  Wire wire(shape);
  for (std::uint64_t i = 1; i <= 2000; ++i) wire.offer(i);
  wire.now += std::chrono::seconds(1);
  const auto out = wire.drain();
  CHECK(out.size() == wire.expected);
  const std::set<std::uint64_t> distinct(out.begin(), out.end());
  CHECK(distinct.size() == 2000 - wire.faults.dropped);
  CHECK(out.size() == distinct.size() + wire.faults.duplicated);
  CHECK(wire.faults.dropped > 450);
  CHECK(wire.faults.dropped < 750);
  CHECK(wire.faults.reordered > 250);
}

TEST_CASE("the same seed gives the same faults, another one others") {
  LinkShape shape;
  shape.drop = 0.2;
  shape.duplicate = 0.2;
  shape.reorder = 0.2;
  const auto play = [&](std::uint64_t seed) {
    Wire wire(shape, seed);
    for (std::uint64_t i = 1; i <= 500; ++i) wire.offer(i);
    wire.now += std::chrono::seconds(1);
    return wire.drain();
  };
  CHECK(play(5) == play(5));
  CHECK(play(5) != play(6));
}

TEST_CASE("a closed channel's puts leave the wire, others stay") {
  LinkShape shape;
  shape.reorder = 0.5;
  Wire wire(shape);
  for (std::uint64_t i = 1; i <= 100; ++i) wire.offer(i, 0, static_cast<ChannelId>(i % 2));
  wire.shaper.forget(1);
  wire.now += std::chrono::seconds(1);
  const auto out = wire.drain();
  CHECK(out.size() == 50);
  CHECK(std::all_of(out.begin(), out.end(), [](std::uint64_t sequence) { return sequence % 2 == 0; }));
}

}  // namespace
}  // namespace mkernel::transport::emulated
