// The bounded wait and the role threads: how each kind of end is told.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/lent_workspace.h"
#include "kernels/base/signal.h"
#include "kernels/cpu/launch/binding.h"
#include "kernels/cpu/sync/role_group.h"
#include "kernels/cpu/sync/wait.h"
#include "kernels/cuda/launch/failure.h"
#include "kernels/cuda/sync/launch_control.h"
#include "kernels/plan/topology.h"
#include "mkernel/trace.h"
#include "tests/support/fake_fabric.h"

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

TEST_CASE(
    "a launch that was not alone says so, and what the caller must do, also when the group has failed") {
  LaunchControl control{};
  control.abort = control.failed = 1;
  control.expected = 4;
  control.seen = 5;
  abi::GroupSegment group{};
  group.abort = static_cast<std::uint32_t>(StatusCode::kDeadlineExceeded);
  for (const auto& [tag, what] :
       {std::pair{DeviceTag::kEpoch, "two launches of the operation"},
        {DeviceTag::kTurn, "two launches with the shared workspace of the group"}}) {
    control.site = {DeviceRole::kPoller, tag, -1, 0};
    const Status status = failure_of_launch(control, &group, nullptr, 2);
    CHECK(status.code() == StatusCode::kFailedPrecondition);
    CHECK(
        status.text() ==
        std::string("rank 2: ") + what +
            " ran at the same time: when this one began 4 had ended, when it ended 5; the results of both "
            "are "
            "void. Launches of a group must follow each other: queue them on one stream, or let each stream "
            "wait for the launch before (cudaStreamWaitEvent)");
  }
}

TEST_CASE("cpu executor: a launch is rejected while another one has the operation, or the shared workspace") {
  test::FakeFabric fabric({});
  const auto lent = fabric.symmetric(lent_workspace_bytes(64));
  const Requirements needs{.lent_bytes = 64};
  Binding one("one"), other("other"), alone("alone");
  for (Binding* each : {&one, &other})
    REQUIRE(each->bind(needs, Topology(1, 1), fabric.group(0), {}, lent[0], 0).ok());
  REQUIRE(alone.bind({}, Topology(1, 1), fabric.group(0), {}, {}, 0).ok());
  const auto launch = [](Binding& binding, const std::function<void(Launch&)>& start) {
    return binding.launch(Topology(1, 1), {}, start);
  };
  for (Binding* first : {&one, &alone}) {
    std::vector<std::string> texts;
    bool second_ran = false;
    const Status outcome = launch(*first, [&](Launch&) {
      for (Binding* second : {first, &other})
        texts.push_back(launch(*second, [&](Launch&) { second_ran |= second != &other; }).text());
    });
    CHECK(outcome.ok());
    CHECK_FALSE(second_ran);
    const std::string begin = ": a launch of ",
                      end = " is under way: launches of a group must follow each other";
    CHECK(texts[0].find((first == &one ? "one" : "alone") + begin + "this operation" + end) == 0);
    if (first == &one) CHECK(texts[1].find("other" + begin + "another operation of this group" + end) == 0);
    if (first == &alone) CHECK(texts[1].empty());  // which shares nothing with it
  }
  // Nothing has failed, and each launch has used the next half.
  std::vector<std::uint64_t> halves;
  for (Binding* each : {&one, &other})
    CHECK(launch(*each, [&](Launch& now) { halves.push_back(now.half_at); }).ok());
  CHECK(halves[0] != halves[1]);
}

TEST_CASE("a text names who hands on what is awaited, and nobody when it comes directly") {
  LaunchControl control{};
  control.abort = control.failed = 1;
  control.expected = 8;
  control.seen = 4;
  control.waited_ns = 500'000'000;
  const GroupView group{};
  const auto text = [&](const Topology& topology, std::uint32_t rank, DeviceTag tag, std::int32_t peer) {
    control.site = {DeviceRole::kCompute, tag, peer, 0};
    return status_of_launch(control, group, topology, rank).text();
  };
  const Topology two(2, 2);
  const auto begins = [](const std::string& whole, const std::string& part) { return whole.find(part) == 0; };
  // Rank 3 sends to its rail peer, rank 1, which hands on to rank 0.
  CHECK(begins(text(two, 0, DeviceTag::kChunkReady, 3),
               "rank 0 compute: a chunk of rank 3 through rank 1: expected 8, seen 4 after 0.5 s"));
  CHECK(begins(text(two, 1, DeviceTag::kChunkReady, 3), "rank 1 compute: a chunk of rank 3: expected 8"));
  CHECK(begins(text(two, 0, DeviceTag::kTileReady, 1), "rank 0 compute: a tile of rank 1: expected 8"));
  CHECK(begins(text(two, 0, DeviceTag::kArrivals, 3), "rank 0 compute: arrivals of rank 3 lane 0: expected"));
  CHECK(begins(text(two, 0, DeviceTag::kGridBarrier, -1), "rank 0 compute: barrier of the grid: expected 8"));
  // It may be that the launch of the other rank has not even begun.
  CHECK(contains({StatusCode::kUnknown, text(two, 0, DeviceTag::kTileReady, 1)}, "give it fewer by `sms`"));
  CHECK(!contains({StatusCode::kUnknown, text(two, 0, DeviceTag::kArrivals, 3)}, "sms"));

  for (const Topology& topology :
       {Topology(1, 1), Topology(1, 4), Topology(2, 2), Topology(4, 1), Topology(3, 2)}) {
    for (std::uint32_t rank = 0; rank < topology.world(); ++rank) {
      for (std::int32_t peer = -1; peer < static_cast<std::int32_t>(topology.world()); ++peer) {
        for (std::uint32_t tag = 0; tag <= static_cast<std::uint32_t>(DeviceTag::kLaunchEnd); ++tag) {
          const std::string line = text(topology, rank, static_cast<DeviceTag>(tag), peer);
          CAPTURE(line);
          CHECK(line.find("4294967295") == std::string::npos);
          CHECK((peer < 0) == (line.find(" of rank ") == std::string::npos));
          const std::size_t named = line.find("through rank ");
          if (named == std::string::npos) continue;
          const auto via = static_cast<std::uint32_t>(std::stoul(line.substr(named + 13)));
          CHECK(via < topology.world());
          CHECK(via != rank);
          CHECK(static_cast<std::int32_t>(via) != peer);
          CHECK(topology.node_of(via) == topology.node_of(rank));
        }
      }
    }
  }
}

TEST_CASE("deadlines are bounded: refused by name where the host gives them, cut where a kernel does") {
  using namespace std::chrono_literals;
  for (const std::chrono::milliseconds good :
       {1ms, std::chrono::milliseconds(30s), std::chrono::milliseconds(30min)})
    CHECK(check_deadline(good).ok());
  for (const std::chrono::milliseconds bad :
       {0ms, -5ms, std::chrono::milliseconds(30min) + 1ms, std::chrono::milliseconds::max()}) {
    const Status refused = check_deadline(bad);
    CHECK(refused.code() == StatusCode::kInvalidArgument);
    CHECK(refused.text() == "deadline = " + std::to_string(bad.count()) + " ms, must be 1..1800000");
  }
  CHECK(bounded_wait_ns(5) == 5);
  CHECK(bounded_wait_ns(kLongestDeadlineNs) == kLongestDeadlineNs);
  CHECK(bounded_wait_ns(~std::uint64_t{0}) == kLongestWaitNs);
  static_assert(kLongestWaitNs < 2 * kLongestDeadlineNs, "pipelines and the poller allow for two of them");
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
