#include "daemon/transport/window/send_window.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>

namespace mkernel::transport {
namespace {

Put put_of(std::uint64_t sequence) {
  Put put;
  put.sequence = sequence;
  put.source_offset = sequence * 7;
  return put;
}

TEST_CASE("takes puts in order up to its capacity") {
  SendWindow window(3);
  CHECK(window.empty());
  CHECK_FALSE(window.oldest().has_value());
  CHECK_FALSE(window.push(put_of(2), {}));
  for (std::uint64_t n = 1; n <= 3; ++n) CHECK(window.push(put_of(n), {}));
  CHECK(window.full());
  CHECK_FALSE(window.push(put_of(4), {}));
  CHECK(window.unsent()->sequence == 1);
}

TEST_CASE("refuses counts that go back or were never sent, and keeps its state") {
  SendWindow window(4);
  for (std::uint64_t n = 1; n <= 4; ++n) CHECK(window.push(put_of(n), {}));
  window.mark_sent();
  window.mark_sent();
  CHECK_FALSE(window.acknowledge(3));
  CHECK(window.acknowledge(2));
  CHECK_FALSE(window.acknowledge(1));
  CHECK_FALSE(window.resume(1));
  CHECK_FALSE(window.resume(3));
  CHECK(window.acknowledged() == 2);
  CHECK(window.sent() == 2);
  CHECK(window.resume(2));
}

TEST_CASE("replays from what the receiver holds, also when the second path dies during the replay") {
  SendWindow window(8);
  for (std::uint64_t n = 1; n <= 8; ++n) CHECK(window.push(put_of(n), {}));
  for (int i = 0; i < 6; ++i) window.mark_sent();
  CHECK(window.resume(2));
  CHECK(window.unsent()->sequence == 3);
  window.mark_sent();
  CHECK(window.resume(5));  // the first path had carried more than its acknowledgements said
  CHECK(window.unsent()->sequence == 6);
  CHECK(window.in_flight() == 3);
}

TEST_CASE("oldest() is the time of the first put that is not acknowledged") {
  SendWindow window(4);
  const SendWindow::Time start{};
  for (std::uint64_t n = 1; n <= 3; ++n) CHECK(window.push(put_of(n), start + std::chrono::seconds(n)));
  CHECK(window.oldest() == start + std::chrono::seconds(1));
  window.mark_sent();
  window.mark_sent();
  CHECK(window.acknowledge(2));
  CHECK(window.oldest() == start + std::chrono::seconds(3));
}

TEST_CASE("channels to one peer have a bound together, and each may have one put under way") {
  constexpr std::uint64_t kLarge = 1 << 20, kSmall = 8;
  const auto load = std::make_shared<PeerLoad>();
  SendWindow small(1000, load);
  const auto submit = [](SendWindow& window, std::uint64_t length) {
    Put put = put_of(window.next_sequence());
    put.length = static_cast<std::uint32_t>(length);
    REQUIRE(window.push(put, {}));
    window.mark_sent();
  };
  {
    SendWindow large(1000, load);
    while (!large.full()) submit(large, kLarge);
    const std::uint64_t most = large.in_flight();
    CHECK(load->bytes == most * (kLarge + PeerLoad::kPut));
    CHECK(load->bytes >= PeerLoad::kMost);
    CHECK(load->bytes < PeerLoad::kMost + kLarge + PeerLoad::kPut);
    CHECK_FALSE(small.full());  // whoever has nothing under way is not kept out
    submit(small, kSmall);
    CHECK(small.full());
    CHECK(large.acknowledge(2));
    CHECK_FALSE(small.full());
    CHECK_FALSE(large.full());
    CHECK(large.acknowledge(2));  // nothing new
    submit(small, kSmall);
    CHECK(large.resume(5));
    CHECK(load->bytes == (most - 5) * (kLarge + PeerLoad::kPut) + 2 * (kSmall + PeerLoad::kPut));
  }
  // A channel that is closed takes what it had under way along.
  CHECK(load->bytes == 2 * (kSmall + PeerLoad::kPut));
  while (!small.full()) submit(small, 0);
  CHECK(small.in_flight() == 1000);  // its own window
}

TEST_CASE("signals are a load as well") {
  const auto load = std::make_shared<PeerLoad>();
  SendWindow one(kMaxWindow, load), other(kMaxWindow, load);
  while (!one.full()) REQUIRE(one.push(put_of(one.next_sequence()), {}));
  CHECK(one.in_flight() == PeerLoad::kMost / PeerLoad::kPut);
  REQUIRE(other.push(put_of(1), {}));
  CHECK(other.full());
}

TEST_CASE("random submission, sending, acknowledgement and replay match a model") {
  std::mt19937_64 random(11);
  SendWindow window(100);
  std::map<std::uint64_t, std::uint64_t> in_flight;  // number -> source_offset
  std::uint64_t submitted = 0, sent = 0, ever = 0, acknowledged = 0;
  for (int step = 0; step < 400'000; ++step) {
    switch (random() % 8) {
      case 0:
      case 1:
      case 2:
        REQUIRE(window.push(put_of(submitted + 1), {}) == (in_flight.size() < 100));
        if (in_flight.size() < 100) {
          ++submitted;
          in_flight[submitted] = submitted * 7;
        }
        break;
      case 3:
      case 4:
      case 5:
        REQUIRE((window.unsent() == nullptr) == (sent == submitted));
        if (sent == submitted) break;
        ++sent;
        REQUIRE(window.unsent()->sequence == sent);
        REQUIRE(window.unsent()->source_offset == in_flight.at(sent));
        window.mark_sent();
        ever = std::max(ever, sent);
        break;
      default: {
        const std::uint64_t count = acknowledged + random() % (ever - acknowledged + 1);
        const bool replay = random() % 50 == 0;
        REQUIRE((replay ? window.resume(count) : window.acknowledge(count)));
        acknowledged = count;
        sent = replay ? count : std::max(sent, count);
        in_flight.erase(in_flight.begin(), in_flight.upper_bound(count));
      }
    }
    REQUIRE(window.in_flight() == in_flight.size());
    REQUIRE(window.next_sequence() == submitted + 1);
    REQUIRE(window.sent() == sent);
  }
  CHECK(submitted > 100'000);
}

}  // namespace
}  // namespace mkernel::transport
