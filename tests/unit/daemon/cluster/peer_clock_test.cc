// What the clocks of two nodes differ by, from keepalives that were made up.
#include "daemon/cluster/peer_clock.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <random>

namespace mkernel::cluster {
namespace {

constexpr std::int64_t kMs = 1000000, kSecond = 1000 * kMs;
constexpr std::int64_t kStart = 1700000000 * kSecond;

/// Two nodes that talk; the clock of b is `ahead` of that of a.
struct Pair {
  PeerClock a, b;
  std::int64_t time = kStart;  ///< of a's clock
  std::int64_t ahead = 0;

  void a_to_b(std::int64_t way) {
    v1::KeepAlive message;
    a.say(message, time);
    time += way;
    b.hear(message, time + ahead);
  }
  void b_to_a(std::int64_t way) {
    v1::KeepAlive message;
    b.say(message, time + ahead);
    time += way;
    a.hear(message, time);
  }
};

TEST_CASE("each end finds the difference, with opposite signs, within half the round trip") {
  std::mt19937_64 random(5);
  for (const std::int64_t ahead : {0L, 3 * kSecond, -250 * kMs, 86400 * kSecond}) {
    Pair pair;
    pair.ahead = ahead;
    for (int i = 0; i < 20; ++i) {
      pair.a_to_b(static_cast<std::int64_t>(random() % (20 * kMs)));
      pair.time += static_cast<std::int64_t>(random() % kSecond);
      pair.b_to_a(static_cast<std::int64_t>(random() % (20 * kMs)));
      pair.time += static_cast<std::int64_t>(random() % kSecond);
    }
    const auto seen_by_a = pair.a.estimate(), seen_by_b = pair.b.estimate();
    REQUIRE(seen_by_a.has_value());
    REQUIRE(seen_by_b.has_value());
    CHECK(std::abs(seen_by_a->offset_ns - ahead) <= seen_by_a->round_trip_ns / 2 + 1);
    CHECK(std::abs(seen_by_b->offset_ns + ahead) <= seen_by_b->round_trip_ns / 2 + 1);
    CHECK(seen_by_a->round_trip_ns < 40 * kMs);
  }
}

TEST_CASE("nothing is known before both have spoken, nor of a peer that says no times") {
  Pair pair;
  CHECK_FALSE(pair.a.estimate().has_value());
  pair.b_to_a(kMs);
  CHECK_FALSE(pair.a.estimate().has_value());
  pair.a_to_b(kMs);
  CHECK(pair.b.estimate().has_value());
  PeerClock alone;
  v1::KeepAlive old;
  old.set_received(7);
  alone.hear(old, kStart);
  CHECK_FALSE(alone.estimate().has_value());
}

TEST_CASE("of several the shortest way counts, and a clock that is set is seen after a few") {
  Pair pair;
  pair.ahead = 5 * kSecond;
  pair.b_to_a(kMs);
  pair.a_to_b(400 * kMs);  // a slow way there: half of it looks like a difference
  pair.b_to_a(kMs);
  CHECK(pair.a.estimate()->offset_ns > 5 * kSecond + 190 * kMs);
  pair.a_to_b(kMs);
  pair.b_to_a(kMs);
  CHECK(std::abs(pair.a.estimate()->offset_ns - 5 * kSecond) <= kMs);
  pair.ahead = 0;
  for (int i = 0; i < 10; ++i) {
    pair.a_to_b(2 * kMs);
    pair.b_to_a(2 * kMs);
  }
  CHECK(std::abs(pair.a.estimate()->offset_ns) <= 2 * kMs);
}

TEST_CASE("times that cannot be are nothing") {
  for (const std::int64_t odd : {INT64_MIN, std::int64_t{-1}, std::int64_t{0}, INT64_MAX}) {
    PeerClock clock;
    v1::KeepAlive said;
    clock.say(said, kStart);
    v1::KeepAlive message;
    message.set_sent(odd);
    message.set_heard_sent(kStart);
    message.set_heard(odd);
    clock.hear(message, kStart + kMs);
    CHECK_FALSE(clock.estimate().has_value());
  }
  PeerClock clock;
  v1::KeepAlive said, message;
  clock.say(said, kStart);
  message.set_sent(kStart);
  message.set_heard(kStart);
  message.set_heard_sent(kStart + 1);  // never said
  clock.hear(message, kStart + kMs);
  CHECK_FALSE(clock.estimate().has_value());
}

}  // namespace
}  // namespace mkernel::cluster
