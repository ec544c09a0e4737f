// The bounded wait and the role threads: how each kind of end is told.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "kernels/sync/launch_failure.h"
#include "kernels/sync/role_group.h"
#include "kernels/sync/signal.h"
#include "kernels/sync/wait.h"
#include "mkernel/trace.h"

using namespace mkernel;
using namespace mkernel::kernels;

namespace {

const WaitSite kSite{"inter_recv", "arrivals", 5, 1};

bool contains(const Status& status, const std::string& part) {
  return status.text().find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a wait ends when the word is there, and sees what was written before") {
  SignalWord word{};
  int payload = 0;
  std::thread writer([&] {
    payload = 42;
    signal_set(word, 3);
  });
  CHECK(wait_at_least(word.value, 3, kSite, {}).ok());
  CHECK(payload == 42);
  writer.join();
  CHECK(wait_at_least(word.value, 2, kSite, {}).ok());
}

TEST_CASE("a wait past its deadline says who waited for what") {
  const std::uint64_t word = 9;
  WaitScope scope;
  scope.rank = 2;
  scope.deadline = std::chrono::milliseconds(20);
  const Status status = wait_at_least(word, 12, kSite, scope);
  CHECK(status.code() == StatusCode::kDeadlineExceeded);
  CHECK(contains(status, "rank 2 inter_recv: arrivals of rank 5 lane 1: expected 12, seen 9 after 0.0 s"));
}

TEST_CASE("a wait ends with the failure record of its group or session") {
  const std::uint64_t word = 0;
  abi::GroupSegment group{};
  abi::SessionSegment session{};
  WaitScope scope{&session, &group, nullptr, 1, std::chrono::minutes(5)};
  const auto fail = [](abi::FailureRecord& record, std::uint32_t& abort) {
    record.culprit = 3;
    std::snprintf(record.node, sizeof record.node, "alpha");
    std::memset(record.text, 'x', sizeof record.text);  // not terminated: must not be read past its end
    std::memcpy(record.text, "client was killed; ", 19);
    std::atomic_ref<std::uint32_t>(abort).store(static_cast<std::uint32_t>(StatusCode::kUnavailable));
  };
  SUBCASE("group") {
    fail(group.failure, group.abort);
    const Status status = wait_at_least(word, 1, kSite, scope);
    CHECK(status.code() == StatusCode::kUnavailable);
    CHECK(contains(status, "group failed: client was killed"));
    CHECK(contains(status, "(culprit: rank 3) (node alpha); while rank 1 inter_recv: arrivals of rank 5"));
  }
  SUBCASE("session") {
    fail(session.failure, session.abort);
    const Status status = wait_at_least(word, 1, kSite, scope);
    CHECK(status.code() == StatusCode::kUnavailable);
    CHECK(contains(status, "session failed: client was killed"));
  }
}

TEST_CASE("the first role that fails stops the others, and is the one told") {
  const std::uint64_t word = 0;
  RoleGroup roles;
  WaitScope scope;
  scope.stop = &roles.stop();
  scope.deadline = std::chrono::minutes(5);
  for (int i = 0; i < 4; ++i) {
    roles.start("waits", [&] { return wait_at_least(word, 1, kSite, scope); });
  }
  roles.start("fails", [] { return Status(StatusCode::kDataLoss, "the cause"); });
  const Status status = roles.join();
  CHECK(status.code() == StatusCode::kDataLoss);
  CHECK(status.text() == "the cause");
}

TEST_CASE("roles that all end well join as OK") {
  RoleGroup roles;
  std::atomic<int> ran{0};
  for (int i = 0; i < 3; ++i) {
    roles.start("adds", [&] {
      ++ran;
      return Status();
    });
  }
  CHECK(roles.join().ok());
  CHECK(ran == 3);
}

TEST_CASE("a role that runs out of memory is an error of the launch") {
  RoleGroup roles;
  roles.start("compute", []() -> Status { throw std::bad_alloc(); });
  const Status status = roles.join();
  CHECK(status.code() == StatusCode::kResourceExhausted);
  CHECK(contains(status, "role compute"));
}

TEST_CASE("what a launch left behind is told as a wait: its deadline, or why the group failed") {
  LaunchControl control{};
  CHECK(failure_of_launch(control, nullptr, nullptr, 2).ok());
  control.abort = control.failed = 1;
  control.site = {DeviceRole::kUser, DeviceTag::kArrivals, 3, 4};
  control.expected = 9;
  control.seen = 8;
  control.waited_ns = 1'500'000'000;
  const Status late = failure_of_launch(control, nullptr, nullptr, 2);
  CHECK(late.code() == StatusCode::kDeadlineExceeded);
  CHECK(late.text() == "rank 2 kernel: arrivals of rank 3 lane 4: expected 9, seen 8 after 1.5 s");
  control.site = {DeviceRole::kCompute, DeviceTag::kChunkReady, 1, 70};  // a chunk is no lane
  CHECK(failure_of_launch(control, nullptr, nullptr, 2).text().find("rank 2 compute: a chunk of rank 1: ") ==
        0);
  abi::GroupSegment group{};
  group.abort = static_cast<std::uint32_t>(StatusCode::kUnavailable);
  std::snprintf(group.failure.text, sizeof group.failure.text, "node b is gone");
  const Status gone = failure_of_launch(control, &group, nullptr, 2);
  CHECK(gone.code() == StatusCode::kUnavailable);
  CHECK(contains(gone, "node b is gone"));
  CHECK(contains(gone, "while rank 2 compute: a chunk of rank 1"));
}

TEST_CASE("a trace holds every role and every wait that had to wait, inside its role") {
  Trace trace;
  SignalWord word{};
  RoleGroup roles;
  roles.trace_to(&trace);
  WaitScope scope;
  scope.trace = &trace;
  std::atomic<int> looks = 0;
  roles.start("setter", [&] {
    while (looks.load() < 2) std::this_thread::yield();  // the other has to wait
    signal_set(word, 1);
    return Status();
  });
  roles.start("waiter",
              [&] { return wait_until([&] { return ++looks, load_acquire(word.value); }, 1, kSite, scope); });
  REQUIRE(roles.join().ok());
  CHECK(wait_at_least(word.value, 1, kSite, scope).ok());  // is there: not a wait
  const std::vector<TraceEvent> events = trace.take();
  CHECK(trace.take().empty());
  const auto of = [&](const std::string& name) -> const TraceEvent& {
    const auto at =
        std::find_if(events.begin(), events.end(), [&](const TraceEvent& e) { return e.name == name; });
    REQUIRE(at != events.end());
    return *at;
  };
  REQUIRE(events.size() == 3);
  const TraceEvent &setter = of("setter"), &waiter = of("waiter"), &wait = of("arrivals");
  CHECK(setter.kind == TraceEvent::Kind::kRole);
  CHECK(setter.track == 0);
  CHECK(waiter.track == 1);
  CHECK(wait.kind == TraceEvent::Kind::kWait);
  CHECK(wait.track == 1);
  CHECK(wait.peer == 5);
  CHECK(waiter.begin_ns <= wait.begin_ns);
  CHECK(wait.begin_ns < wait.end_ns);
  CHECK(wait.end_ns <= waiter.end_ns);
}
