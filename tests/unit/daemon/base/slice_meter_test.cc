#include "daemon/base/slice_meter.h"

#include <doctest/doctest.h>

#include <ctime>

#include "daemon/base/work_budget.h"

namespace mkernel::base {
namespace {

using std::chrono::milliseconds;

/// Keeps this thread busy for so much of its processor time.
void burn(std::chrono::nanoseconds busy) {
  const auto now = [] {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  };
  const auto end = now() + busy;
  while (now() < end) {
  }
}

TEST_CASE("the longest slice and the slices above the limit are counted") {
  SliceMeter meter;
  meter.begin();
  burn(milliseconds(3));
  meter.end_slice();
  CHECK(meter.times().longest >= milliseconds(3));
  CHECK(meter.times().longest < milliseconds(9));
  CHECK(meter.times().over_limit == 0);
  for (int i = 0; i < 2; ++i) {
    burn(milliseconds(12));
    meter.end_slice();
  }
  CHECK(meter.times().longest >= milliseconds(12));
  CHECK(meter.times().over_limit == 2);
  burn(milliseconds(4));
  meter.end_slice();
  CHECK(meter.times().longest >= milliseconds(12));
  CHECK(meter.times().over_limit == 2);
}

TEST_CASE("a long slice among many short ones is seen") {
  SliceMeter meter;
  meter.begin();
  for (int i = 0; i < 10000; ++i) meter.end_slice();
  burn(milliseconds(12));
  for (int i = 0; i < 32; ++i) meter.end_slice();
  CHECK(meter.times().over_limit == 1);
  CHECK(meter.times().longest >= milliseconds(12));
}

TEST_CASE("slices behind many short ones do not add up") {
  SliceMeter meter;
  meter.begin();
  for (int round = 0; round < 3; ++round) {
    burn(milliseconds(2));  // long enough to learn what a tick is
    meter.end_slice();
    for (int i = 0; i < 1000; ++i) meter.end_slice();
    for (int i = 0; i < 20; ++i) {
      burn(std::chrono::microseconds(900));
      meter.end_slice();
    }
  }
  CHECK(meter.times().over_limit == 0);
  CHECK(meter.times().longest < milliseconds(6));
}

TEST_CASE("short slices do not add up, and time in which the thread did not run does not count") {
  SliceMeter meter;
  meter.begin();
  for (int i = 0; i < 60; ++i) {
    burn(std::chrono::microseconds(500));
    meter.end_slice();
  }
  CHECK(meter.times().over_limit == 0);
  // Blocked inside a slice: the wall clock goes on, the processor time does not.
  const timespec pause{0, 30 * 1000 * 1000};
  ::nanosleep(&pause, nullptr);
  meter.end_slice();
  CHECK(meter.times().over_limit == 0);
  // Asleep between two slices.
  burn(milliseconds(7));
  meter.end_slice();
  ::nanosleep(&pause, nullptr);
  meter.woke_up();
  burn(milliseconds(7));
  meter.end_slice();
  CHECK(meter.times().over_limit == 0);
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
