// What users get of a rail, whatever number of sessions each opens and whatever these send.
#include <doctest/doctest.h>

#include <cstdint>
#include <deque>
#include <random>

#include "daemon/dataplane/scheduler.h"

namespace mkernel::dataplane {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// A session with an endless backlog of puts of one size.
struct Flow {
  std::uint64_t put_bytes = 0;
  bool busy = true;
  std::uint64_t sent_bytes = 0;
  std::uint64_t sent_puts = 0;
  Allowance allowance;
  bool in_turn = false;
  bool throttled = false;

  bool has_work() const { return busy; }
};

/// A wire that takes what it can move: time passes with every put.
struct TimedWire {
  double bytes_per_second = 10e9;
  double seconds_per_put = 100e-9;
  double elapsed = 0;  ///< seconds
  std::uint64_t room = ~0ULL;

  Turn serve(Flow& flow) {
    while (flow.busy) {
      if (!flow.allowance.left()) return Turn::kUsedUp;
      if (room == 0) return Turn::kRefused;
      --room;
      flow.allowance.charge(flow.put_bytes);
      flow.sent_bytes += flow.put_bytes;
      ++flow.sent_puts;
      elapsed += seconds_per_put + static_cast<double>(flow.put_bytes) / bytes_per_second;
    }
    return Turn::kIdle;
  }
};

/// Users with some sessions each.
struct Users {
  explicit Users(std::uint64_t quantum = 256 * 1024) : scheduler(quantum, 64) {}

  Flow& add(const Share& share, std::uint64_t put_bytes) {
    Flow& flow = flows.emplace_back();
    flow.put_bytes = put_bytes;
    owners.push_back(share.user);
    scheduler.add(&flow, share);
    return flow;
  }
  void add(const Share& share, std::uint64_t put_bytes, int sessions) {
    for (int i = 0; i < sessions; ++i) add(share, put_bytes);
  }
  void round() {
    scheduler.round([this](Flow& flow) { return wire.serve(flow); }, [this] { return now; });
  }
  void rounds(int count) {
    for (int i = 0; i < count; ++i) round();
  }
  double bytes_of(std::uint32_t user) const {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < flows.size(); ++i) sum += owners[i] == user ? flows[i].sent_bytes : 0;
    return static_cast<double>(sum);
  }
  double puts_of(std::uint32_t user) const {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < flows.size(); ++i) sum += owners[i] == user ? flows[i].sent_puts : 0;
    return static_cast<double>(sum);
  }

  TimedWire wire;
  base::TimePoint now{seconds(1)};
  std::deque<Flow> flows;
  std::deque<std::uint32_t> owners;
  Scheduler<Flow> scheduler;
};

TEST_CASE("two users of weights 1 and 3 get 1 to 3, whatever number of sessions each opens") {
  for (const int ones : {1, 2, 16, 64}) {
    for (const int threes : {1, 5, 64}) {
      CAPTURE(ones);
      CAPTURE(threes);
      Users bytes;
      bytes.add({.user = 1, .user_weight = 1}, 5000, ones);
      bytes.add({.user = 2, .user_weight = 3}, 5000, threes);
      bytes.rounds(2000);
      CHECK(bytes.bytes_of(2) / bytes.bytes_of(1) == doctest::Approx(3).epsilon(0.05));
      Users requests;
      requests.add({.user = 1, .user_weight = 1}, 0, ones);
      requests.add({.user = 2, .user_weight = 3}, 0, threes);
      requests.rounds(2000);
      CHECK(requests.puts_of(2) / requests.puts_of(1) == doctest::Approx(3).epsilon(0.05));
    }
  }
}

TEST_CASE("the same over a transport that is full, and takes a few puts at a time") {
  for (const int ones : {1, 16}) {
    for (const std::uint64_t room : {1, 7, 40}) {
      CAPTURE(ones);
      CAPTURE(room);
      Users users(20000);
      users.add({.user = 1, .user_weight = 1}, 1000, ones);
      users.add({.user = 2, .user_weight = 3}, 1000, 2);
      for (int i = 0; i < 60000; ++i) {
        users.wire.room = room;
        users.round();
      }
      CHECK(users.bytes_of(2) / users.bytes_of(1) == doctest::Approx(3).epsilon(0.05));
      // And within a user nobody goes without.
      for (const Flow& flow : users.flows) CHECK(flow.sent_puts > 0);
    }
  }
}

TEST_CASE("a user with 16 sessions gets no more than one with a single session") {
  Users users;
  users.add({.user = 1}, 1U << 20, 16);
  Flow& alone = users.add({.user = 2}, 4096);
  users.rounds(20000);
  CHECK(users.bytes_of(1) / static_cast<double>(alone.sent_bytes) == doctest::Approx(1).epsilon(0.05));
  for (const Flow& flow : users.flows) CHECK(flow.sent_puts > 0);
}

TEST_CASE("within a user sessions share by their own weights") {
  Users users;
  Flow& light = users.add({.user = 1, .user_weight = 2, .weight = 1}, 3000);
  Flow& heavy = users.add({.user = 1, .user_weight = 2, .weight = 4}, 3000);
  users.add({.user = 2, .user_weight = 1}, 3000, 3);
  users.rounds(3000);
  CHECK(static_cast<double>(heavy.sent_bytes) / static_cast<double>(light.sent_bytes) ==
        doctest::Approx(4).epsilon(0.05));
  CHECK(users.bytes_of(1) / users.bytes_of(2) == doctest::Approx(2).epsilon(0.05));
}

// The share of somebody who has one equal competitor is half of the wire.
TEST_CASE("a flood of tiny puts costs a bystander at most a tenth of its share") {
  for (const std::uint64_t put_bytes : {4096U, 65536U, 1U << 20}) {
    for (const int flooding : {1, 16}) {
      CAPTURE(put_bytes);
      CAPTURE(flooding);
      Users users;
      users.add({.user = 1}, 8, flooding);
      Flow& bystander = users.add({.user = 2}, put_bytes);
      users.rounds(5000);
      Users alone;
      Flow& reference = alone.add({.user = 2}, put_bytes);
      alone.rounds(5000);
      const double rate = static_cast<double>(bystander.sent_bytes) / users.wire.elapsed;
      const double whole = static_cast<double>(reference.sent_bytes) / alone.wire.elapsed;
      CHECK(rate >= 0.9 * whole / 2);
    }
  }
}

TEST_CASE("one session of a user whose peer takes nothing holds up neither the user's others nor anybody") {
  Users users;
  Flow& blocked = users.add({.user = 1}, 4096);
  users.add({.user = 1}, 4096, 3);
  users.add({.user = 2}, 4096, 1);
  TimedWire full;
  full.room = 0;
  for (int i = 0; i < 3000; ++i) {
    users.scheduler.round([&](Flow& flow) { return (&flow == &blocked ? full : users.wire).serve(flow); },
                          [] { return base::TimePoint{}; });
  }
  CHECK(blocked.sent_puts == 0);
  CHECK(users.bytes_of(1) / users.bytes_of(2) == doctest::Approx(1).epsilon(0.05));
  const double third = users.bytes_of(1) / 3;
  for (std::size_t i = 1; i < 4; ++i) {
    CHECK(static_cast<double>(users.flows[i].sent_bytes) == doctest::Approx(third).epsilon(0.05));
  }
}

TEST_CASE("one huge put is paid back by the user that sent it, and its other sessions go first then") {
  Users users;
  Flow& huge = users.add({.user = 1}, 1U << 30);
  Flow& small = users.add({.user = 1}, 8192);
  Flow& other = users.add({.user = 2}, 8192);
  users.rounds(40000);
  CHECK(huge.sent_puts > 1);
  const double one_put = static_cast<double>(1U << 30);
  CHECK(users.bytes_of(1) <= users.bytes_of(2) + 2 * one_put);
  CHECK(static_cast<double>(huge.sent_bytes) <= static_cast<double>(small.sent_bytes) + 2 * one_put);
  CHECK(other.sent_puts > 0);
}

/// Rounds of a microsecond each, for so long.
void run_for(Users& users, std::chrono::nanoseconds time) {
  for (const auto end = users.now + time; users.now < end; users.now += microseconds(1)) users.round();
}

TEST_CASE("a user with a rate limit sends so much, all its sessions together, and others take the rest") {
  Users users;
  users.add({.user = 1, .bytes_per_second = 100'000'000}, 1000, 4);
  Flow& free = users.add({.user = 2}, 1000);
  run_for(users, seconds(1));
  CHECK(users.bytes_of(1) == doctest::Approx(100e6).epsilon(0.05));
  CHECK(users.flows[0].throttled);
  CHECK_FALSE(free.throttled);
  CHECK(free.sent_bytes > 1'000'000'000);

  Users requests;
  requests.add({.user = 1, .requests_per_second = 50'000}, 8, 3);
  run_for(requests, seconds(1));
  CHECK(requests.puts_of(1) == doctest::Approx(50e3).epsilon(0.05));
}

TEST_CASE("a rate limit saves up a little and no more, and a put beyond it is paid back") {
  Users users;
  Flow& flow = users.add({.user = 1, .bytes_per_second = 1'000'000}, 10'000'000);
  users.round();
  CHECK(flow.sent_puts == 1);  // ten seconds' worth
  run_for(users, milliseconds(500));
  CHECK(flow.sent_puts == 1);
  users.now += seconds(10);
  run_for(users, milliseconds(10));
  CHECK(flow.sent_puts == 2);

  Users quiet;
  Flow& rested = quiet.add({.user = 1, .bytes_per_second = 100'000'000}, 1000);
  rested.busy = false;
  quiet.round();
  quiet.now += seconds(60);
  rested.busy = true;
  for (int i = 0; i < 1000; ++i) quiet.round();
  CHECK(rested.sent_bytes >= 1'000'000);
  CHECK(rested.sent_bytes <= 3'000'000);  // 20 ms of its rate
  rested.busy = false;
  quiet.round();
  CHECK_FALSE(rested.throttled);
}

TEST_CASE("members come and go in the middle of their turns") {
  std::mt19937_64 random(5);
  Users users(5000);
  std::deque<Flow> flows(40);
  std::vector<Flow*> in, out;
  for (Flow& flow : flows) out.push_back(&flow);
  for (int i = 0; i < 50000; ++i) {
    if (random() % 7 == 0 && !out.empty()) {
      Flow* flow = out.back();
      out.pop_back();
      *flow = {.put_bytes = random() % 3 == 0 ? 0 : random() % 20000};
      users.scheduler.add(flow, {.user = static_cast<std::uint32_t>(random() % 5),
                                 .user_weight = static_cast<std::uint32_t>(random() % 4),
                                 .weight = static_cast<std::uint32_t>(random() % 4),
                                 .bytes_per_second = random() % 4 == 0 ? 1'000'000U : 0U});
      in.push_back(flow);
    } else if (random() % 8 == 0 && !in.empty()) {
      const std::size_t at = random() % in.size();
      users.scheduler.remove(in[at]);
      out.push_back(in[at]);
      in.erase(in.begin() + static_cast<std::ptrdiff_t>(at));
    }
    for (Flow* flow : in) flow->busy = random() % 4 != 0;
    users.wire.room = random() % 40;
    users.now += microseconds(random() % 100);
    users.round();
    CHECK(users.scheduler.members().size() == in.size());
  }
  // Everybody who is there and has work gets something.
  for (Flow* flow : in) *flow = {.put_bytes = 100, .allowance = flow->allowance, .in_turn = flow->in_turn};
  users.wire.room = ~0ULL;
  for (int i = 0; i < 3000; ++i) {
    users.now += milliseconds(10);
    users.round();
  }
  for (const Flow* flow : in) CHECK(flow->sent_puts > 0);
}

}  // namespace
}  // namespace mkernel::dataplane
