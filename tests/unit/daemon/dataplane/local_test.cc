// Puts between ranks of one node: copied by the proxy, the same contract.
#include <cstring>
#include <random>

#include "tests/support/proxy_fixture.h"

namespace mkernel::test {
namespace {

using std::chrono::milliseconds;

/// Three ranks, each a session of its own on this node.
struct Node : ProxyFixture {
  explicit Node(std::uint64_t bytes, const dataplane::ProxyOptions& options = {}) : ProxyFixture(options) {
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      ranks.push_back(join(rank + 1,
                           {.rank = rank,
                            .lanes = 2,
                            .first_channel = 4 * rank,
                            .ranks = {{.session = 1}, {.session = 2}, {.session = 3}}},
                           bytes));
    }
  }
  std::vector<Client> ranks;
};

TEST_CASE("random local puts, to others and to itself, arrive whole and are counted on both sides") {
  constexpr std::uint64_t kBytes = 1U << 20;
  constexpr std::uint64_t kPart =
      kBytes / 8;  // rank s writes into part s (lane 0) and s + 3 (lane 1) of rank d
  Node node(kBytes);
  std::mt19937_64 random(7);
  // Sources are read from the last part, which nobody writes.
  for (auto& rank : node.ranks) {
    for (std::uint64_t i = 7 * kPart; i < kBytes; ++i)
      rank.region->host(0)[i] = static_cast<std::byte>(random());
  }
  std::vector<std::vector<std::byte>> expected(3, std::vector<std::byte>(kBytes));
  std::uint64_t counts[3][3][2] = {};
  for (int i = 0; i < 6000; ++i) {
    const auto s = static_cast<std::uint32_t>(random() % 3), d = static_cast<std::uint32_t>(random() % 3);
    const auto lane = static_cast<std::uint32_t>(random() % 2);
    const auto length = static_cast<std::uint32_t>(random() % 4 == 0 ? 0 : random() % 3000);
    const std::uint64_t from = 7 * kPart + random() % (kPart - 3000);
    const std::uint64_t to = (s + 3 * lane) * kPart + random() % (kPart - 3000);
    node.ranks[s].put(d, length, from, to, lane);
    std::memcpy(expected[d].data() + to, node.ranks[s].region->host(from), length);
    ++counts[s][d][lane];
  }
  for (std::uint32_t s = 0; s < 3; ++s) {
    for (std::uint32_t d = 0; d < 3; ++d) {
      for (std::uint32_t lane = 0; lane < 2; ++lane) {
        const std::uint64_t want = counts[s][d][lane];
        CHECK(eventually([&] { return arrivals(*node.ranks[d].group, s, lane) == want; }));
        CHECK(eventually([&] { return completed(*node.ranks[s].group, d, lane) == want; }));
      }
    }
  }
  for (std::uint32_t d = 0; d < 3; ++d) {
    CHECK(std::memcmp(node.ranks[d].region->host(0), expected[d].data(), 7 * kPart) == 0);
  }
  CHECK(node.wire->put_count() == 0);
  CHECK(node.sink.sessions().empty());
}

// A put of many pieces is charged piece by piece, so that a neighbour's small puts get through meanwhile.
TEST_CASE("a put larger than a turn arrives whole") {
  constexpr std::uint64_t kBytes = 24U << 20;
  Node node(kBytes, {.quantum_bytes = 64 * 1024});
  std::mt19937_64 random(8);
  auto* words = node.ranks[0].region->mapping.at<std::uint64_t>(0);
  for (std::uint64_t i = 0; i < kBytes / 8; ++i) words[i] = random();
  node.ranks[0].put(1, kBytes - 5, 3, 5);
  node.ranks[2].put(1, 0);
  node.ranks[0].put(1, 0);
  REQUIRE(eventually([&] { return arrivals(*node.ranks[1].group, 0) == 2; }));
  CHECK(arrivals(*node.ranks[1].group, 2) == 1);
  CHECK(std::memcmp(node.ranks[1].region->host(5), node.ranks[0].region->host(3), kBytes - 5) == 0);
}

TEST_CASE("a put to itself may overlap its source") {
  Node node(1U << 16);
  auto* bytes = node.ranks[0].region->host(0);
  for (int i = 0; i < 1000; ++i) bytes[i] = static_cast<std::byte>(i * 7);
  node.ranks[0].put(0, 1000, 0, 10);
  REQUIRE(eventually([&] { return arrivals(*node.ranks[0].group, 0) == 1; }));
  for (int i = 0; i < 1000; ++i) CHECK(bytes[i + 10] == static_cast<std::byte>(i * 7));
}

TEST_CASE("a put to a rank that has left goes nowhere and completes: its sender goes on") {
  Node node(1U << 16);
  node.ranks[0].put(1, 8);
  REQUIRE(eventually([&] { return arrivals(*node.ranks[1].group, 0) == 1; }));
  REQUIRE(detach_session(node.proxy, 2, milliseconds(1000)));
  node.ranks[0].put(1, 8);
  CHECK(eventually([&] { return completed(*node.ranks[0].group, 1) == 2; }));
  node.ranks[0].put(2, 8);
  CHECK(eventually([&] { return arrivals(*node.ranks[2].group, 0) == 1; }));
  CHECK(node.sink.groups().empty());
}

// The announcement says it is there, the region itself is gone: the table of announcements lags behind.
TEST_CASE("a local put into a region that has just gone fails the sender's group, not the target") {
  Node node(1U << 16);
  REQUIRE(clear_region(node.proxy, node.ranks[1].group->key, 0, milliseconds(1000)).ok());
  CHECK(eventually([&] { return node.ranks[1].region.use_count() == 1; }));
  node.ranks[0].put(1, 8);
  REQUIRE(eventually([&] { return node.sink.groups().size() == 1; }));
  CHECK(node.sink.groups()[0].group == node.ranks[0].group->key);
  CHECK(node.sink.groups()[0].why.code() == StatusCode::kNotFound);
  CHECK(node.sink.sessions().empty());
}

}  // namespace
}  // namespace mkernel::test
