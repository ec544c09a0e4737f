// What a client library must stand that its process does: fork(), running out of threads and file
// descriptors, and numbers of ranks that the group does not have.
#include "tests/unit/client/process.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <optional>

#include "tests/unit/client/ranks.h"

namespace mkernel::test {
namespace {

/// In a child: ends it with the number of the first check that does not hold.
class ChildCheck {
 public:
  void holds(bool condition) {
    ++number_;
    if (!condition) ::_exit(number_);
  }
  void refused(const Status& status) {
    holds(status.code() == StatusCode::kFailedPrecondition && contains(status, "was forked"));
  }

 private:
  int number_ = 0;
};

struct Everything {
  std::optional<Session> session;
  std::optional<Group> group;
  std::optional<SymmetricBuffer> symmetric;
  std::optional<HostBuffer> host;
  std::optional<Activity> active;
  std::optional<Gemm> gemm;
  std::optional<Pending> pending;
  std::uint32_t lane = 0;
};

Everything connect_and_make(const FakeDaemon& daemon, const GemmArguments& operands) {
  Everything all;
  const auto keep = [](auto made, auto& place) {
    REQUIRE_MESSAGE(made.ok(), made.status().to_string());
    place = std::move(*made);
  };
  keep(Session::connect({.socket = daemon.socket(), .name = "test", .timeout = kLong}), all.session);
  keep(all.session->join(group_options(1, 0)), all.group);
  keep(all.group->symmetric(4096), all.symmetric);
  keep(all.group->allocate(4096), all.host);
  keep(all.group->reserve_lanes(1), all.lane);
  all.active = all.group->keep_active();
  keep(all.group->ag_gemm({8, 8, 8}), all.gemm);
  keep(all.gemm->launch(operands), all.pending);
  check_ok(all.pending->wait());
  return all;
}

/// Every call of every handle, then the end of all of them. Returns 0 when all is well.
int use_in_child(Everything& all, const std::string& socket, const GemmArguments& operands) {
  ChildCheck check;
  check.refused(all.session->status());
  check.refused(all.session->join(group_options(1, 0)).status());
  Group& group = *all.group;
  check.refused(group.status());
  check.refused(group.fail({StatusCode::kInternal, "not for the child to say"}));
  check.refused(group.barrier());
  check.refused(group.exchange({}).status());
  check.refused(group.symmetric(64).status());
  check.refused(group.symmetric_gpu(64).status());
  check.refused(group.register_gpu(nullptr, 64).status());
  check.refused(group.allocate(64).status());
  check.refused(group.register_memory(0, 0, 64).status());
  check.refused(group.reserve_lanes(1).status());
  check.refused(group.put(0, all.lane, *all.symmetric, 0, 0, 0, 8).status());
  check.refused(group.put(0, all.lane, *all.host, 0, 0, 0, 8).status());
  check.refused(group.signal(0, all.lane).status());
  check.refused(group.wait_arrival(0, all.lane, 1, kShort));
  check.refused(group.wait_completed(0, all.lane, 1, kShort));
  check.refused(group.device_endpoint().status());
  check.refused(group.ag_gemm({8, 8, 8}).status());
  check.refused(group.gemm_rs({8, 8, 8}).status());
  check.refused(group.gemm_ar({8, 8, 8}).status());
  check.refused(group.moe({}).status());
  check.refused(group.ring_attention({}).status());
  check.refused(all.gemm->launch(operands).status());
  check.refused(all.gemm->status());
  check.refused(all.gemm->enqueue(operands, nullptr));
  check.refused(all.pending->wait());
  check.refused(all.pending->wait_for(kShort));
  check.holds(group.arrivals(0, all.lane) == 0);
  check.holds(group.rank_info(0).node_name == "node0");  // what it is as the child can see it
  check.holds(all.symmetric->peer(0) == all.symmetric->data());
  { const Activity mine = group.keep_active(); }
  // A session of its own works, and ends, beside the parent's.
  {
    auto own = Session::connect({.socket = socket, .name = "child", .timeout = kLong});
    check.holds(own.ok());
    check.holds(own->status().ok());
  }
  all = {};  // ends nothing, joins nothing
  return 0;
}

TEST_CASE("a forked child is refused by name, its handles end without a word, and the parent goes on") {
  FakeDaemon daemon;
  std::vector<std::uint16_t> a(64), b(64), c(64);
  const GemmArguments operands{a.data(), b.data(), c.data()};
  Everything all = connect_and_make(daemon, operands);
  const FakeDaemon::Look before = daemon.look();
  CHECK(in_child([&] { return use_in_child(all, daemon.socket(), operands); }) == 0);
  // As it was: nobody left, nothing was unregistered, and the session is still active.
  CHECK(eventually([&] { return daemon.look().sessions == before.sessions; }));
  const FakeDaemon::Look after = daemon.look();
  CHECK(after.members == before.members);
  CHECK(after.regions == before.regions);
  CHECK(after.active == before.active);
  CHECK(after.puts == before.puts);
  check_ok(all.group->barrier());
  check_ok(all.group->signal(0, all.lane).status());
  check_ok(all.group->wait_arrival(0, all.lane, 1, kLong));
  auto again = all.gemm->launch(operands);
  REQUIRE(again.ok());
  check_ok(again->wait());
  all = {};
  CHECK(eventually([&] { return daemon.look().sessions == 0; }));
}

TEST_CASE("a child of a child is nobody's home but its own") {
  FakeDaemon daemon;
  auto session = Session::connect({.socket = daemon.socket(), .name = "test", .timeout = kLong});
  REQUIRE(session.ok());
  CHECK(in_child([&] {
          ChildCheck check;
          auto own = Session::connect({.socket = daemon.socket(), .name = "child", .timeout = kLong});
          check.holds(own.ok());
          check.refused(session->status());
          check.holds(in_child([&] {
                        ChildCheck inner;
                        inner.refused(session->status());
                        inner.refused(own->status());
                        return 0;
                      }) == 0);
          check.holds(own->status().ok());
          return 0;
        }) == 0);
  check_ok(session->status());
}

std::ptrdiff_t open_fds() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

TEST_CASE("a thread that cannot be started is an error, and leaves nothing behind") {
  FakeDaemon daemon;
  const SessionOptions options{.socket = daemon.socket(), .name = "test", .timeout = kLong};
  auto session = Session::connect(options);
  REQUIRE(session.ok());
  CHECK(eventually([&] { return daemon.look().sessions == 1; }));
  const std::ptrdiff_t fds = open_fds();
  {
    const NoThreads limit;
    check_status(Session::connect(options).status(), StatusCode::kResourceExhausted, "cannot start a thread");
    check_status(session->join(group_options(1, 0)).status(), StatusCode::kResourceExhausted,
                 "cannot start a thread");
  }
  CHECK(eventually([&] { return daemon.look().sessions == 1 && open_fds() == fds; }));
  CHECK(daemon.look().members == 0);
  check_ok(session->join(group_options(1, 0)).status());
}

TEST_CASE("a file descriptor that cannot be had is an error of connect()") {
  FakeDaemon daemon;
  // In a child, so that the daemon of this test keeps its own.
  CHECK(in_child([&] {
          ChildCheck check;
          const int next = ::fcntl(0, F_DUPFD, 3);
          check.holds(next >= 3);
          ::close(next);
          const rlimit one_more{static_cast<rlim_t>(next) + 1, static_cast<rlim_t>(next) + 1};  // the socket
          check.holds(::setrlimit(RLIMIT_NOFILE, &one_more) == 0);
          const auto session =
              Session::connect({.socket = daemon.socket(), .name = "test", .timeout = kLong});
          check.holds(session.status().code() == StatusCode::kResourceExhausted);
          check.holds(contains(session.status(), "eventfd"));
          return 0;
        }) == 0);
}

TEST_CASE("a rank that the group does not have has no place and no buffer") {
  FakeDaemon daemon;
  with_groups(daemon, 2, [](Group& group) {
    auto buffer = group.symmetric(4096);
    check_ok(buffer.status());
    if (!buffer.ok()) return;
    for (const std::uint32_t rank : {2U, 1024U, ~0U}) {
      CHECK(buffer->peer(rank) == nullptr);
      CHECK(group.rank_info(rank).node == RankInfo::kNowhere);
      CHECK(group.rank_info(rank).local_rank == RankInfo::kNowhere);
      CHECK(group.rank_info(rank).node_name.empty());
    }
    CHECK(buffer->peer(group.rank()) == buffer->data());
    check_ok(group.barrier());
  });
}

}  // namespace
}  // namespace mkernel::test
