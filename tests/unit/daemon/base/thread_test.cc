#include "daemon/base/thread.h"

#include <doctest/doctest.h>
#include <pthread.h>
#include <sched.h>

#include <string>
#include <thread>

#include "daemon/base/clock.h"

namespace mkernel::base {
namespace {

TEST_CASE("a thread gets the first 15 characters of its name") {
  char name[16] = {};
  std::thread([&name] {
    name_this_thread("mk-proxy-with-a-long-name");
    pthread_getname_np(pthread_self(), name, sizeof(name));
  }).join();
  CHECK(std::string(name) == "mk-proxy-with-a");
}

TEST_CASE("a thread stays on its CPU, and a CPU that is not there is named") {
  Status good, bad, negative;
  int on = -1;
  std::thread([&] {
    cpu_set_t allowed;
    pthread_getaffinity_np(pthread_self(), sizeof(allowed), &allowed);
    int cpu = 0;
    while (!CPU_ISSET(cpu, &allowed)) ++cpu;
    good = pin_this_thread(cpu);
    on = sched_getcpu() == cpu ? 1 : 0;
    bad = pin_this_thread(CPU_SETSIZE + 5);
    negative = pin_this_thread(-3);
  }).join();
  CHECK(good.ok());
  CHECK(on == 1);
  CHECK(bad.code() == StatusCode::kInvalidArgument);
  CHECK(bad.text().find(std::to_string(CPU_SETSIZE + 5)) != std::string::npos);
  CHECK(negative.code() == StatusCode::kInvalidArgument);
}

TEST_CASE("a deadline never overflows into the past") {
  const TimePoint now = Clock::now();
  CHECK(deadline_after(std::chrono::milliseconds(0)) >= now);
  CHECK(deadline_after(std::chrono::milliseconds(5)) > now);
  CHECK(deadline_after(std::chrono::milliseconds::max()) > now);
}

}  // namespace
}  // namespace mkernel::base
