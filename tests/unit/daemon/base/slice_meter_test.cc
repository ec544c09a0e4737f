#include "daemon/base/slice_meter.h"

#include <doctest/doctest.h>
#include <sched.h>

#include <atomic>
#include <ctime>
#include <thread>
#include <utility>

#include "daemon/base/thread.h"
#include "daemon/base/work_budget.h"
#include "tests/support/thread_time.h"

namespace mkernel::base {
namespace {

using std::chrono::milliseconds;

/// The host of a virtual machine took the processor away, which counts as processor time.
bool interrupted = false;

/// Keeps this thread busy for so much of its processor time.
void burn(std::chrono::nanoseconds busy) {
  auto now = test::thread_time();
  const auto end = now + busy;
  while (now < end) {
    const auto before = std::exchange(now, test::thread_time());
    interrupted = interrupted || now - before > milliseconds(1);
  }
}

/// What `test` returns, once more while it is false and was interrupted, twenty times at most.
template <typename Test>
bool uninterrupted(const Test& test) {
  for (int i = 0; i < 20; ++i) {
    interrupted = false;
    if (test()) return true;
    if (!interrupted) return false;
  }
  return false;
}

void burn_slice(SliceMeter& meter, std::chrono::nanoseconds busy) {
  burn(busy);
  meter.end_slice();
}

TEST_CASE("the longest slice and the slices above the limit are counted") {
  CHECK(uninterrupted([] {
    SliceMeter meter;
    meter.begin();
    burn_slice(meter, milliseconds(3));
    const SliceTimes one = meter.times();
    for (int i = 0; i < 2; ++i) burn_slice(meter, milliseconds(12));
    const SliceTimes three = meter.times();
    burn_slice(meter, milliseconds(4));
    const SliceTimes all = meter.times();
    return one.longest >= milliseconds(3) && one.longest < milliseconds(9) && one.over_limit == 0 &&
           three.longest >= milliseconds(12) && three.over_limit == 2 && all.longest == three.longest &&
           all.over_limit == 2;
  }));
}

TEST_CASE("a long slice among many short ones is seen") {
  CHECK(uninterrupted([] {
    SliceMeter meter;
    meter.begin();
    for (int i = 0; i < 10000; ++i) meter.end_slice();
    burn(milliseconds(12));
    for (int i = 0; i < 32; ++i) meter.end_slice();
    return meter.times().over_limit == 1 && meter.times().longest >= milliseconds(12);
  }));
}

TEST_CASE("slices behind many short ones do not add up") {
  CHECK(uninterrupted([] {
    SliceMeter meter;
    meter.begin();
    for (int round = 0; round < 3; ++round) {
      burn_slice(meter, milliseconds(2));  // long enough to learn what a tick is
      for (int i = 0; i < 1000; ++i) meter.end_slice();
      for (int i = 0; i < 20; ++i) burn_slice(meter, std::chrono::microseconds(900));
    }
    return meter.times().over_limit == 0 && meter.times().longest < milliseconds(6);
  }));
}

TEST_CASE("short slices do not add up") {
  CHECK(uninterrupted([] {
    SliceMeter meter;
    meter.begin();
    for (int i = 0; i < 60; ++i) burn_slice(meter, std::chrono::microseconds(500));
    return meter.times().over_limit == 0;
  }));
}

TEST_CASE("time in which the thread did not run does not count") {
  const timespec pause{0, 30 * 1000 * 1000};
  CHECK(uninterrupted([&pause] {  // blocked inside a slice: only the wall clock goes on
    SliceMeter meter;
    meter.begin();
    ::nanosleep(&pause, nullptr);
    meter.end_slice();
    return meter.times().over_limit == 0;
  }));
  CHECK(uninterrupted([&pause] {  // waits between two slices
    SliceMeter meter;
    meter.begin();
    burn_slice(meter, milliseconds(7));
    ::nanosleep(&pause, nullptr);
    meter.woke_up();
    burn_slice(meter, milliseconds(7));
    return meter.times().over_limit == 0;
  }));
}

TEST_CASE("a sleep inside a slice is seen, a wait between two slices is not") {
  const timespec pause{0, 30 * 1000 * 1000};
  CHECK(uninterrupted([&pause] {
    SliceMeter meter;
    meter.begin();
    burn_slice(meter, milliseconds(2));
    ::nanosleep(&pause, nullptr);
    burn_slice(meter, milliseconds(2));
    const SliceTimes seen = meter.times();
    return seen.longest_wall >= milliseconds(32) && seen.wall_over_limit >= 1 &&
           (!seen.knows_sleep || (seen.longest_asleep >= milliseconds(28) && seen.asleep_over_limit == 1));
  }));
  bool calm = false;  // a busy machine may hold up the slices as well
  for (int i = 0; i < 20 && !calm; ++i) {
    SliceMeter meter;
    meter.begin();
    for (int slice = 0; slice < 2; ++slice) {
      burn(milliseconds(2));
      meter.end_slice();
      ::nanosleep(&pause, nullptr);
      meter.woke_up();
    }
    calm = meter.times().wall_over_limit == 0 && meter.times().longest_wall >= milliseconds(2);
  }
  CHECK(calm);
}

/// Uses up the processor that the calling thread has been kept on, until it ends.
class Rival {
 public:
  explicit Rival(std::uint32_t cpu)
      : thread_([this, cpu] {
          static_cast<void>(pin_this_thread({{cpu}}));
          while (!stop_) cpu_relax();
        }) {}
  ~Rival() {
    stop_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

TEST_CASE("a thread that stands in line for a processor is late and does not sleep") {
  SliceTimes seen;
  std::thread measured([&seen] {  // which may be kept on one processor without harm to other tests
    const auto cpu = static_cast<std::uint32_t>(::sched_getcpu());
    if (!pin_this_thread({{cpu}}).ok()) return;
    const Rival rival(cpu);
    for (int i = 0; i < 20; ++i) {  // a host may take the processor away, which some kernels show as a sleep
      SliceMeter meter;
      meter.begin();
      while (meter.times().wall_over_limit < 3)
        burn_slice(meter, milliseconds(9));  // the rival has its turns
      seen = meter.times();
      if (seen.asleep_over_limit == 0) return;
    }
  });
  measured.join();
  SliceMeter older;  // a thread that has just begun knows as much as one that has run for long
  older.begin();
  CHECK(seen.knows_sleep == older.times().knows_sleep);
  CHECK(seen.wall_over_limit == 3);
  CHECK(seen.longest_wall > seen.longest);
  CHECK(seen.asleep_over_limit == 0);
}

TEST_CASE("a budget ends with its time, is looked at every so many steps, and may be endless") {
  WorkBudget spent(std::chrono::nanoseconds(0));
  CHECK(spent.left(1));  // not looked at yet
  CHECK_FALSE(spent.left(WorkBudget::kStepsPerLook - 1));
  CHECK_FALSE(spent.left());
  WorkBudget hour(std::chrono::hours(1));
  CHECK(hour.left());
  WorkBudget endless = WorkBudget::unlimited();
  for (int i = 0; i < 1000; ++i) CHECK(endless.left());
}

}  // namespace
}  // namespace mkernel::base
