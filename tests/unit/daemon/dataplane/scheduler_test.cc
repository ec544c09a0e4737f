#include "daemon/dataplane/scheduler.h"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <random>

namespace mkernel::dataplane {
namespace {

/// A session with an endless or a counted backlog of puts of one size.
struct Member {
  std::uint32_t weight = 1;
  std::uint64_t put_bytes = 0;
  std::uint64_t backlog = 0;  ///< puts left
  std::uint64_t sent_bytes = 0;
  std::uint64_t sent_puts = 0;
  std::uint32_t user = 0;  ///< 0: one of its own
  Allowance allowance;
  bool in_turn = false;
  bool throttled = false;

  bool has_work() const { return backlog > 0; }
};

/// A transport that takes `capacity` puts before it refuses.
struct Link {
  std::uint64_t capacity = ~0ULL;

  Turn serve(Member& member) {
    while (member.backlog > 0) {
      if (!member.allowance.left()) return Turn::kUsedUp;
      if (capacity == 0) return Turn::kRefused;
      --capacity;
      --member.backlog;
      member.allowance.charge(member.put_bytes);
      member.sent_bytes += member.put_bytes;
      ++member.sent_puts;
    }
    return Turn::kIdle;
  }
};

base::TimePoint no_clock() {
  FAIL("nobody has a rate limit");
  return {};
}

void round(Scheduler<Member>& scheduler, Link& link) {
  scheduler.round([&link](Member& member) { return link.serve(member); }, no_clock);
}

/// Adds a member that is a user of its own, or one of a user's.
void add(Scheduler<Member>& scheduler, Member& member, std::uint32_t user_weight = 1) {
  static std::uint32_t last_user = 1000;
  if (member.user == 0) {
    scheduler.add(&member, {.user = ++last_user, .user_weight = member.weight});
  } else {
    scheduler.add(&member, {.user = member.user, .user_weight = user_weight, .weight = member.weight});
  }
}

constexpr std::uint64_t kEndless = 1ULL << 40;

TEST_CASE("bytes are shared by weight, whatever the size of the puts") {
  Member big{.weight = 1, .put_bytes = 100000, .backlog = kEndless};
  Member small{.weight = 3, .put_bytes = 700, .backlog = kEndless};
  Scheduler<Member> scheduler(64 * 1024, 1U << 30);
  add(scheduler, big);
  add(scheduler, small);
  Link link;
  for (int i = 0; i < 4000; ++i) round(scheduler, link);
  const double ratio = static_cast<double>(small.sent_bytes) / static_cast<double>(big.sent_bytes);
  CHECK(ratio == doctest::Approx(3.0).epsilon(0.02));
}

TEST_CASE("requests are shared by weight when puts carry no bytes") {
  Member greedy{.weight = 1, .put_bytes = 0, .backlog = kEndless};
  Member modest{.weight = 2, .put_bytes = 0, .backlog = kEndless};
  Scheduler<Member> scheduler(64 * 1024, 64);
  add(scheduler, greedy);
  add(scheduler, modest);
  Link link;
  for (int i = 0; i < 100; ++i) round(scheduler, link);
  CHECK(greedy.sent_puts == 6400);
  CHECK(modest.sent_puts == 12800);
}

TEST_CASE("a flood of signals does not slow down whoever sends bytes") {
  Member signals{.weight = 1, .put_bytes = 0, .backlog = kEndless};
  Member bytes{.weight = 1, .put_bytes = 4096, .backlog = kEndless};
  Scheduler<Member> scheduler(64 * 1024, 64);
  add(scheduler, signals);
  add(scheduler, bytes);
  Link link;
  for (int i = 0; i < 100; ++i) round(scheduler, link);
  CHECK(signals.sent_puts == 6400);
  CHECK(bytes.sent_bytes == 100 * 64 * 1024);
}

// The link frees one place at a time: who asks first must not get them all.
TEST_CASE("a full transport is shared by weight as well") {
  Member first{.weight = 1, .put_bytes = 1000, .backlog = kEndless};
  Member second{.weight = 3, .put_bytes = 1000, .backlog = kEndless};
  Member third{.weight = 4, .put_bytes = 1000, .backlog = kEndless};
  Scheduler<Member> scheduler(20000, 1U << 20);
  for (Member* member : {&first, &second, &third}) add(scheduler, *member);
  Link link{.capacity = 0};
  for (int i = 0; i < 80000; ++i) {
    link.capacity = 1;
    round(scheduler, link);
  }
  CHECK(first.sent_puts + second.sent_puts + third.sent_puts == 80000);
  CHECK(static_cast<double>(first.sent_puts) == doctest::Approx(10000).epsilon(0.02));
  CHECK(static_cast<double>(second.sent_puts) == doctest::Approx(30000).epsilon(0.02));
  CHECK(static_cast<double>(third.sent_puts) == doctest::Approx(40000).epsilon(0.02));
}

TEST_CASE("one session whose peer takes nothing holds up nobody") {
  Member blocked{.weight = 1, .put_bytes = 1000, .backlog = kEndless};
  Member free{.weight = 1, .put_bytes = 1000, .backlog = kEndless};
  Scheduler<Member> scheduler(10000, 1000);
  add(scheduler, blocked);
  add(scheduler, free);
  Link full{.capacity = 0};
  Link open;
  for (int i = 0; i < 50; ++i) {
    scheduler.round([&](Member& m) { return (&m == &blocked ? full : open).serve(m); }, no_clock);
  }
  CHECK(blocked.sent_puts == 0);
  CHECK(free.sent_puts == 500);
}

TEST_CASE("an overdraft is paid back before the next put, but not by waiting alone") {
  Member huge{.weight = 1, .put_bytes = 1ULL << 30, .backlog = 100};
  Member other{.weight = 1, .put_bytes = 1000, .backlog = kEndless};
  Scheduler<Member> scheduler(100000, 1U << 20);
  add(scheduler, huge);
  Link link;
  for (int i = 0; i < 21; ++i) round(scheduler, link);
  CHECK(huge.sent_puts >= 10);  // alone: the rounds in which it could only wait are skipped

  huge.sent_bytes = 0;
  add(scheduler, other);
  for (int i = 0; i < 30000; ++i) round(scheduler, link);
  // At any time the huge one may be ahead by one put.
  CHECK(huge.sent_bytes <= other.sent_bytes + 2 * huge.put_bytes);
}

TEST_CASE("a lone member has whole turns, and owes nothing when another one comes") {
  Member huge{.weight = 2, .put_bytes = 1000000, .backlog = kEndless};
  Member other{.weight = 2, .put_bytes = 1000, .backlog = kEndless};
  Scheduler<Member> scheduler(10000, 64);
  add(scheduler, huge);
  Link link;
  for (int i = 0; i < 10; ++i) round(scheduler, link);
  CHECK(huge.sent_puts == 10);  // each overdraws its turn
  huge.put_bytes = 1000;
  add(scheduler, other);
  round(scheduler, link);
  CHECK(huge.sent_puts == 10 + 20);
  CHECK(other.sent_puts == 20);

  // One that is refused in the middle of a turn, and alone then, begins anew when the other one is back.
  link.capacity = 5;
  round(scheduler, link);
  CHECK(huge.in_turn);
  scheduler.remove(&other);
  CHECK_FALSE(huge.in_turn);
  link.capacity = 3;
  round(scheduler, link);
  add(scheduler, other);
  const std::uint64_t huge_before = huge.sent_puts, other_before = other.sent_puts;
  link.capacity = ~0ULL;
  for (int i = 0; i < 10; ++i) round(scheduler, link);
  CHECK(huge.sent_puts - huge_before == 200);
  CHECK(other.sent_puts - other_before == 200);
}

TEST_CASE("idle members save nothing up, and members may come and go") {
  Member a{.weight = 1, .put_bytes = 1000, .backlog = kEndless};
  Member b{.weight = 1, .put_bytes = 1000, .backlog = 0};
  Scheduler<Member> scheduler(10000, 1U << 20);
  add(scheduler, a);
  add(scheduler, b);
  Link link;
  for (int i = 0; i < 100; ++i) round(scheduler, link);
  b.backlog = kEndless;
  a.sent_puts = 0;
  for (int i = 0; i < 10; ++i) round(scheduler, link);
  CHECK(b.sent_puts == 100);
  CHECK(a.sent_puts == 100);
  scheduler.remove(&a);
  round(scheduler, link);
  CHECK(a.sent_puts == 100);
  CHECK(b.sent_puts == 110);
  scheduler.remove(&b);
  round(scheduler, link);
  CHECK(scheduler.members().empty());
}

}  // namespace
}  // namespace mkernel::dataplane
