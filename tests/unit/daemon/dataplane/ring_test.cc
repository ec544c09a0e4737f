// Rings with writers that are fast, many, asleep or hostile. Runs under ThreadSanitizer too.
#include <cstring>
#include <map>
#include <random>
#include <thread>

#include "tests/support/proxy_fixture.h"

namespace mkernel::test {
namespace {

using std::chrono::milliseconds;

TEST_CASE("several fast writers wrap a small ring hundreds of times and lose nothing") {
  constexpr std::uint32_t kWriters = 3;
  constexpr std::uint64_t kEach = 4000;
  ProxyFixture node;
  node.wire->allow_everything();
  node.wire->complete_at_once();
  node.wire->record(true, false);
  auto client = node.join(1, pair_shape(1, 77, kWriters), 1U << 16, 4);
  std::vector<std::thread> writers;
  for (std::uint32_t lane = 0; lane < kWriters; ++lane) {
    writers.emplace_back([&client, lane] {
      for (std::uint64_t i = 1; i <= kEach; ++i) client.put(1, 1 + lane, i % 60000, (i * 7) % 60000, lane);
    });
  }
  for (std::thread& writer : writers) writer.join();
  for (std::uint32_t lane = 0; lane < kWriters; ++lane) {
    CHECK(eventually([&] { return completed(*client.group, 1, lane) == kEach; }));
  }
  std::map<transport::ChannelKey, std::uint64_t> seen;
  std::uint64_t wrong = 0;
  for (const RecordedPut& record : node.wire->puts()) {
    const std::uint64_t i = ++seen[record.key];
    if (record.put.sequence != i || record.put.source_offset != i % 60000 ||
        record.put.remote_offset != (i * 7) % 60000) {
      ++wrong;
    }
  }
  CHECK(wrong == 0);
  for (std::uint32_t lane = 0; lane < kWriters; ++lane) CHECK(seen[client.key(1, lane)] == kEach);
  CHECK(client.ring->tail() == kWriters * kEach);
}

// The writer reuses a source as soon as its completion is published: the sanitizer watches the order of
// memory.
TEST_CASE("sources may be overwritten once completed says so, and arrivals show the payload") {
  ProxyFixture node;
  const GroupShape shape{.ranks = {{.session = 1}, {.session = 2}}};
  GroupShape other = shape;
  other.rank = 1;
  auto sender = node.join(1, shape);
  auto receiver = node.join(2, other);
  constexpr std::uint64_t kRounds = 3000;
  std::atomic<std::uint64_t> consumed{0};
  std::uint64_t wrong = 0;
  std::thread reader([&] {
    for (std::uint64_t n = 1; n <= kRounds; ++n) {
      if (!eventually([&] { return arrivals(*receiver.group, 0) >= n; })) break;
      const auto* words = receiver.region->mapping.at<std::uint64_t>(0);
      for (std::uint64_t i = 0; i < 16; ++i) wrong += words[i] == n * 1000 + i ? 0 : 1;
      consumed.store(n, std::memory_order_release);
    }
  });
  for (std::uint64_t n = 1; n <= kRounds; ++n) {
    if (!eventually([&] {
          return completed(*sender.group, 1) >= n - 1 && consumed.load(std::memory_order_acquire) >= n - 1;
        })) {
      break;
    }
    auto* words = sender.region->mapping.at<std::uint64_t>(0);
    for (std::uint64_t i = 0; i < 16; ++i) words[i] = n * 1000 + i;
    sender.put(1, 128);
  }
  reader.join();
  CHECK(consumed.load() == kRounds);
  CHECK(wrong == 0);
}

/// Waits a random number of turns of the loop, so that writers and the sleeper meet in every phase.
void dawdle(std::mt19937_64& random) {
  for (std::uint64_t i = random() % 3000; i > 0; --i) std::atomic_signal_fence(std::memory_order_seq_cst);
}

TEST_CASE("no wake-up is lost, whichever way a client wakes its proxy") {
  ProxyFixture node({.spin = std::chrono::microseconds(0), .nap = std::chrono::microseconds(20)});
  auto client = node.join(1, {.ranks = {{.session = 1}}});
  client.ring->set_active(0);
  std::mt19937_64 random(11);
  std::uint64_t sent = 0;
  for (int i = 0; i < 1500; ++i) {
    dawdle(random);
    const bool announces = i % 2 == 0;
    if (announces) {  // as the client library does: active, doorbell, then slots at any time
      client.ring->set_active(1);
      client.ring->ring_doorbell();
      dawdle(random);
      client.put(0, 0);
    } else {  // slot, then doorbell, never active
      client.put(0, 0);
      client.ring->ring_doorbell();
    }
    ++sent;
    REQUIRE(eventually([&] { return arrivals(*client.group, 0) == sent; }));
    if (announces) client.ring->set_active(0);
  }
}

TEST_CASE("a session that was quiet for long is still served without a doorbell") {
  ProxyFixture node({.idle_after = std::chrono::seconds(0)});
  auto client = node.join(1, {.ranks = {{.session = 1}}});
  for (std::uint64_t i = 1; i <= 20; ++i) {
    client.put(0, 0);
    REQUIRE(eventually([&] { return arrivals(*client.group, 0) == i; }));
  }
}

/// Writes whatever it likes into everything a client can write, for as long as it is let.
class Hostile {
 public:
  Hostile(const ProxyFixture::Client& client, std::uint64_t seed) : client_(client), random_(seed) {}

  void strike() {
    auto* header = client_.session->header();
    switch (random_() % 8) {
      case 0:
        std::atomic_ref<std::uint64_t>(header->head(abi::RingWriter::kThreads, 0).tail)
            .store(random_(), std::memory_order_relaxed);
        break;
      case 1:
        std::atomic_ref<std::uint32_t>(header->active)
            .store(static_cast<std::uint32_t>(random_()), std::memory_order_relaxed);
        break;
      case 2:
        std::atomic_ref<std::uint32_t>(header->log2_slots)
            .store(static_cast<std::uint32_t>(random_()), std::memory_order_relaxed);
        break;
      case 3: client_.ring->ring_doorbell(); break;
      case 4: client_.ring->scribble(next_, torn()); break;
      case 5: client_.ring->scribble(random_(), {{random_(), random_(), random_(), random_()}}); break;
      default: client_.ring->scribble(next_++, nearly_good()); break;
    }
  }

 private:
  abi::WorkSlot nearly_good() {
    abi::WorkRequest request =
        put_request(0, 0, static_cast<std::uint32_t>(random_() % 5000), random_() % 60000, random_() % 60000);
    switch (random_() % 60) {
      case 0: request.channel = static_cast<std::uint32_t>(random_()); break;
      case 1: request.peer = static_cast<std::uint32_t>(random_()); break;
      case 2: request.local_region = static_cast<std::uint16_t>(random_()); break;
      case 3: request.remote_region = static_cast<std::uint16_t>(random_()); break;
      case 4: request.local_offset = random_(); break;
      case 5: request.remote_offset = random_(); break;
      case 6: request.length = static_cast<std::uint32_t>(random_()); break;
      case 7: request.opcode = static_cast<std::uint8_t>(random_()); break;
      default: break;
    }
    return abi::encode(request, abi::lap_bit(next_, 6));
  }
  abi::WorkSlot torn() {
    abi::WorkSlot slot = nearly_good();
    slot.word[random_() % 2 == 0 ? 0 : 3] = random_();
    return slot;
  }

  const ProxyFixture::Client& client_;
  std::mt19937_64 random_;
  std::uint64_t next_ = 0;
};

TEST_CASE("a hostile client is ended, and another session's transfers go on unharmed") {
  ProxyFixture node;
  const GroupShape shape{.instance = 9, .ranks = {{.session = 1}, {.session = 2}}};
  GroupShape second = shape;
  second.rank = 1;
  auto sender = node.join(1, shape);
  auto receiver = node.join(2, second);
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> verified{0};
  std::atomic<std::uint64_t> wrong{0};
  std::thread honest([&] {
    std::mt19937_64 random(5);
    for (std::uint64_t n = 1; !stop.load(); ++n) {
      auto* source = sender.region->mapping.at<std::uint64_t>(0);
      for (std::uint64_t i = 0; i < 64; ++i) source[i] = random();
      sender.put(1, 512, 0, 1024);
      if (!eventually([&] { return arrivals(*receiver.group, 0) >= n; })) break;
      if (std::memcmp(source, receiver.region->host(1024), 512) != 0) wrong.fetch_add(1);
      verified.store(n);
    }
  });
  constexpr dataplane::SessionId kAttacks = 40;
  for (dataplane::SessionId attack = 0; attack < kAttacks; ++attack) {
    auto victim = node.join(100 + attack, {.instance = 1000 + attack, .ranks = {{.session = 100 + attack}}},
                            1U << 16, 6);
    Hostile hostile(victim, attack);
    const std::uint64_t before = verified.load();
    CHECK(eventually([&] {
      for (int i = 0; i < 50; ++i) hostile.strike();
      return node.sink.sessions().size() == attack + 1;
    }));
    CHECK(eventually([&] {
      hostile.strike();  // goes on although nobody reads any more
      return verified.load() > before;
    }));
    CHECK(detach_session(node.proxy, 100 + attack, milliseconds(10000)));
    CHECK(eventually([&] { return victim.region.use_count() == 1; }));
  }
  stop.store(true);
  honest.join();
  CHECK(wrong.load() == 0);
  CHECK(verified.load() >= kAttacks);
  CHECK(node.sink.sessions().size() == kAttacks);
  for (const auto& [session, why] : node.sink.sessions()) {
    CHECK(session >= 100);
    CHECK(why.text().find("session " + std::to_string(session)) != std::string::npos);
  }
  CHECK(node.sink.groups().empty());
}

}  // namespace
}  // namespace mkernel::test
