#include "daemon/base/mailbox.h"

#include <doctest/doctest.h>
#include <poll.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

namespace mkernel::base {
namespace {

bool readable(int fd, int timeout_ms) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, timeout_ms) == 1;
}

TEST_CASE("commands run once, in the order in which they were posted") {
  Mailbox mailbox;
  std::vector<int> ran;
  for (int i = 0; i < 100; ++i) mailbox.post([&ran, i] { ran.push_back(i); });
  CHECK(ran.empty());
  CHECK(mailbox.run() == 100);
  CHECK(mailbox.run() == 0);
  REQUIRE(ran.size() == 100);
  for (int i = 0; i < 100; ++i) CHECK(ran[static_cast<std::size_t>(i)] == i);
}

TEST_CASE("a command may be move-only, may post, and dies with the mailbox when it never ran") {
  const auto alive = std::make_shared<int>(7);
  {
    Mailbox mailbox;
    int seen = 0;
    mailbox.post([&, owned = std::make_unique<int>(5)] {
      seen = *owned;
      mailbox.post([alive] {});
    });
    CHECK(mailbox.run() == 1);
    CHECK(seen == 5);
    CHECK(alive.use_count() == 2);
  }
  CHECK(alive.use_count() == 1);
}

TEST_CASE("a budget that is used up leaves the rest, in order, and the owner does not sleep") {
  Mailbox mailbox;
  std::vector<int> ran;
  const auto alive = std::make_shared<int>(7);
  for (int i = 0; i < 3; ++i) mailbox.post([&ran, i] { ran.push_back(i); });
  WorkBudget none(std::chrono::nanoseconds(0));
  CHECK(mailbox.run(none) == 1);
  mailbox.post([&ran] { ran.push_back(3); });
  mailbox.post([alive] {});
  CHECK(mailbox.has_work());
  CHECK_FALSE(mailbox.begin_sleep());
  mailbox.end_sleep();
  CHECK(mailbox.run() == 2);  // what was taken together
  CHECK(ran == std::vector<int>{0, 1, 2});
  CHECK(mailbox.run(none) == 1);
  CHECK(ran.back() == 3);
  CHECK(alive.use_count() == 2);
  CHECK(mailbox.run() == 1);
  CHECK(alive.use_count() == 1);
  CHECK_FALSE(mailbox.has_work());
}

TEST_CASE("commands that a budget left behind die with the mailbox") {
  const auto alive = std::make_shared<int>(7);
  {
    Mailbox mailbox;
    for (int i = 0; i < 3; ++i) mailbox.post([alive] {});
    WorkBudget none(std::chrono::nanoseconds(0));
    CHECK(mailbox.run(none) == 1);
    mailbox.post([alive] {});
  }
  CHECK(alive.use_count() == 1);
}

TEST_CASE("the event fd is written only for a sleeper") {
  Mailbox mailbox;
  mailbox.post([] {});
  CHECK_FALSE(readable(mailbox.event_fd(), 0));
  CHECK_FALSE(mailbox.begin_sleep());  // something is there already
  mailbox.end_sleep();
  CHECK(mailbox.run() == 1);

  CHECK(mailbox.begin_sleep());
  CHECK_FALSE(readable(mailbox.event_fd(), 0));
  mailbox.post([] {});
  CHECK(readable(mailbox.event_fd(), 0));
  mailbox.end_sleep();
  CHECK_FALSE(readable(mailbox.event_fd(), 0));
  CHECK(mailbox.run() == 1);
}

// A lost wake-up leaves the owner in a poll that only its long time-out would end.
TEST_CASE("no wake-up is lost between a sleeping owner and several posters") {
  constexpr int kPosters = 3;
  constexpr int kEach = 20000;
  Mailbox mailbox;
  std::vector<int> last(kPosters, -1);
  int ran = 0;
  bool in_order = true;
  bool lost = false;
  std::thread owner([&] {
    while (ran < kPosters * kEach && !lost) {
      if (mailbox.run() > 0) continue;
      if (mailbox.begin_sleep()) lost = !readable(mailbox.event_fd(), 20000);
      mailbox.end_sleep();
    }
  });
  std::vector<std::thread> posters;
  for (int p = 0; p < kPosters; ++p) {
    posters.emplace_back([&, p] {
      for (int i = 0; i < kEach; ++i) {
        mailbox.post([&, p, i] {
          auto& before = last[static_cast<std::size_t>(p)];
          in_order = in_order && before == i - 1;
          before = i;
          ++ran;
        });
      }
    });
  }
  for (std::thread& poster : posters) poster.join();
  owner.join();
  CHECK_FALSE(lost);
  CHECK(in_order);
  CHECK(ran == kPosters * kEach);
}

}  // namespace
}  // namespace mkernel::base
