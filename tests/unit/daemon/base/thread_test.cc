#include "daemon/base/thread.h"

#include <doctest/doctest.h>
#include <pthread.h>
#include <sched.h>

#include <string>
#include <thread>
#include <vector>

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

TEST_CASE("a thread stays on its CPUs, and CPUs that are not there are named") {
  Status good, bad, none;
  int on = -1;
  std::thread([&] {
    cpu_set_t allowed;
    pthread_getaffinity_np(pthread_self(), sizeof(allowed), &allowed);
    std::uint32_t cpu = 0;
    while (!CPU_ISSET(cpu, &allowed)) ++cpu;
    good = pin_this_thread(std::vector<std::uint32_t>{cpu, CPU_SETSIZE + 7});
    on = sched_getcpu();
    CHECK(on == static_cast<int>(cpu));
    bad = pin_this_thread(std::vector<std::uint32_t>{CPU_SETSIZE + 5, CPU_SETSIZE + 6});
    none = pin_this_thread({});
  }).join();
  CHECK(good.ok());
  CHECK(bad.code() == StatusCode::kInvalidArgument);
  CHECK(bad.text().find(std::to_string(CPU_SETSIZE + 5) + ", " + std::to_string(CPU_SETSIZE + 6)) !=
        std::string::npos);
  CHECK(none.code() == StatusCode::kInvalidArgument);
}

TEST_CASE("a deadline never overflows into the past") {
  const TimePoint now = Clock::now();
  CHECK(deadline_after(std::chrono::milliseconds(0)) >= now);
  CHECK(deadline_after(std::chrono::milliseconds(5)) > now);
  CHECK(deadline_after(std::chrono::milliseconds::max()) > now);
}

}  // namespace
}  // namespace mkernel::base
