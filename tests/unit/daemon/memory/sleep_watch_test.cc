#include "daemon/memory/sleep_watch.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <semaphore>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace mkernel::memory {
namespace {

/// A watch whose threads sleep when the test says so, and what it has found.
struct Judged {
  bool sleeps = false;
  std::vector<std::pair<std::uint64_t, Status>> found;
  SleepWatch watch{[this](std::uint64_t session, const Status& why) { found.emplace_back(session, why); },
                   [this](int) { return sleeps; }};

  Judged() { watch.watch_this_thread("mk-proxy-3"); }
  ~Judged() { watch.unwatch_this_thread(); }
  void look(int times) {
    for (int i = 0; i < times; ++i) watch.look();
  }
};

constexpr int kLooks = SleepWatch::kLimit / SleepWatch::kInterval;

TEST_CASE("a session whose memory makes a thread sleep is found, by name and with the thread") {
  Judged judged;
  const Touching touching(41);
  judged.look(10 * kLooks);
  CHECK(judged.found.empty());  // the thread runs
  judged.sleeps = true;
  judged.look(kLooks - 1);
  CHECK(judged.found.empty());
  judged.look(2);
  REQUIRE(judged.found.size() == 1);
  CHECK(judged.found[0].first == 41);
  CHECK(judged.found[0].second.code() == StatusCode::kAborted);
  CHECK(judged.found[0].second.text().find("(mk-proxy-3) sleep for 200 ms") != std::string::npos);
}

TEST_CASE("many short sleeps count as one long, rare ones are forgotten") {
  Judged judged;
  const Touching touching(5);
  for (int i = 0; i < 100 * kLooks; ++i) {
    judged.sleeps = i % (2 * SleepWatch::kForget) == 0;
    judged.look(1);
  }
  CHECK(judged.found.empty());
  for (int i = 0; i < 4 * kLooks; ++i) {
    judged.sleeps = i % 2 == 0;
    judged.look(1);
  }
  CHECK_FALSE(judged.found.empty());
}

TEST_CASE("a thread that sleeps outside of client memory costs no session anything") {
  Judged judged;
  judged.sleeps = true;
  judged.look(3 * kLooks);
  {
    const Touching outer(7);
    const Touching several(0);
    judged.look(3 * kLooks);
  }
  CHECK(judged.found.empty());
  const Touching outer(7);
  { const Touching inner(8); }
  judged.look(kLooks + 1);
  REQUIRE(judged.found.size() == 1);
  CHECK(judged.found[0].first == 7);
}

TEST_CASE("whether a thread sleeps is seen from outside, on a busy machine too") {
  std::binary_semaphore go(0);
  std::atomic<int> stat{-1};
  std::atomic<bool> stop{false};
  std::thread thread([&] {
    stat = ::open("/proc/thread-self/stat", O_RDONLY | O_CLOEXEC);
    go.acquire();
    while (!stop) {
    }
  });
  while (stat < 0) std::this_thread::yield();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!SleepWatch::asleep_by_stat(stat) && std::chrono::steady_clock::now() < end) {
  }
  CHECK(SleepWatch::asleep_by_stat(stat));
  go.release();
  // From here on it runs, or waits for a processor.
  while (SleepWatch::asleep_by_stat(stat) && std::chrono::steady_clock::now() < end) {
  }
  int asleep = 0;
  for (int i = 0; i < 1000; ++i) asleep += SleepWatch::asleep_by_stat(stat) ? 1 : 0;
  CHECK(asleep < 100);  // it may wait for a page of its own
  stop = true;
  thread.join();
  ::close(stat);
}

TEST_CASE("the watch looks by itself, and a thread can leave it") {
  std::atomic<int> found{0};
  SleepWatch watch([&](std::uint64_t, const Status&) { ++found; }, [](int) { return true; });
  watch.start();
  watch.watch_this_thread("test");
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  {
    const Touching touching(9);
    while (found == 0 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  }
  CHECK(found > 0);
  watch.unwatch_this_thread();
}

}  // namespace
}  // namespace mkernel::memory
