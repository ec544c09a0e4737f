#include "daemon/transport/window/receive_window.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

namespace mkernel::transport {
namespace {

using Verdict = ReceiveWindow::Verdict;

TEST_CASE("a channel begins at put 1; what lies before the first put is not a put") {
  const ReceiveWindow window(8);
  CHECK(window.prefix() == 0);
  CHECK(window.announce(1).verdict == Verdict::kNew);
  CHECK(window.announce(1).number == 1);
  CHECK(window.announce(8).verdict == Verdict::kNew);
  CHECK(window.announce(9).verdict == Verdict::kOutside);
  CHECK(window.announce(0).verdict == Verdict::kOutside);
  CHECK(window.announce(0xffff).verdict == Verdict::kOutside);
}

TEST_CASE("the prefix grows over what arrived ahead of it, and duplicates change nothing") {
  ReceiveWindow window(8);
  CHECK_FALSE(window.accept(2));
  CHECK_FALSE(window.accept(4));
  CHECK(window.prefix() == 0);
  CHECK(window.announce(2).verdict == Verdict::kDuplicate);
  CHECK(window.accept(1));
  CHECK(window.prefix() == 2);
  CHECK_FALSE(window.accept(1));
  CHECK_FALSE(window.accept(4));
  CHECK(window.accept(3));
  CHECK(window.prefix() == 4);
  CHECK(window.announce(3).verdict == Verdict::kDuplicate);
}

TEST_CASE("capacities are held to what 16 bits can number") {
  CHECK(ReceiveWindow(0).capacity() == 1);
  CHECK(ReceiveWindow(1U << 20).capacity() == kMaxWindow);
}

/// Plays a sender with `window` puts in flight over a path that reorders and duplicates, and checks every
/// answer against a std::map of what has arrived.
void play(std::uint32_t capacity, std::uint64_t puts, unsigned seed) {
  CAPTURE(capacity);
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  ReceiveWindow window(capacity);
  std::map<std::uint64_t, int> arrived;  // number -> times
  std::vector<std::uint64_t> path;       // in flight, to be taken in random order
  std::uint64_t sent = 0;
  std::uint64_t model_prefix = 0;
  while (model_prefix < puts) {
    while (sent < puts && sent < model_prefix + capacity && (path.empty() || random() % 3 != 0)) {
      path.push_back(++sent);
      if (random() % 8 == 0) path.push_back(sent);
      if (random() % 8 == 0)
        path.push_back(1 + sent - std::min<std::uint64_t>(sent, 1 + random() % capacity));
    }
    const std::size_t pick = random() % path.size();
    std::swap(path[pick], path.back());
    const std::uint64_t number = path.back();
    path.pop_back();
    // The sender's window bounds how old a late duplicate can be: what is older was fenced off with its path.
    if (number + kMaxWindow < model_prefix) continue;

    const auto announced = window.announce(to_wire(number));
    const bool seen = arrived[number]++ > 0;
    REQUIRE(announced.number == number);
    REQUIRE(announced.verdict == (seen ? Verdict::kDuplicate : Verdict::kNew));
    const std::uint64_t before = model_prefix;
    while (arrived.contains(model_prefix + 1)) ++model_prefix;
    REQUIRE(window.accept(announced.number) == (model_prefix > before));
    REQUIRE(window.prefix() == model_prefix);
  }
}

TEST_CASE("random order and duplicates match a model, over several wraps of the sequence") {
  play(1, 140'000, 1);
  play(3, 140'000, 2);
  play(64, 200'000, 3);
  play(1000, 300'000, 4);
  play(kMaxWindow, 300'000, 5);
}

TEST_CASE("after a restart what was ahead of the prefix comes again, on every lap") {
  ReceiveWindow window(8);
  std::uint64_t prefix = 0;
  for (const std::uint64_t jump : {0ULL, 65530ULL, 65540ULL, 131071ULL}) {
    prefix = std::max(prefix, jump);
    window.restart(prefix);
    for (const std::uint64_t ahead : {2U, 3U, 8U}) REQUIRE(!window.accept(prefix + ahead));
    window.restart(prefix);
    for (std::uint64_t ahead = 1; ahead <= 8; ++ahead) {
      const auto announced = window.announce(to_wire(prefix + ahead));
      REQUIRE(announced.verdict == Verdict::kNew);
      REQUIRE(announced.number == prefix + ahead);
      REQUIRE(window.accept(announced.number));
    }
    prefix += 8;
    CHECK(window.prefix() == prefix);
  }
}

}  // namespace
}  // namespace mkernel::transport
