// How the client creates, launches and fails operations, shown with an operation of the test's own.
#include "client/src/operation.h"

#include <atomic>
#include <mutex>

#include "kernels/cpu/comm/endpoint.h"
#include "tests/unit/client/ranks.h"

namespace mkernel::test {
namespace {

using client::GroupCore;
using client::OperationState;

/// Passes a token once around the ring of ranks per launch.
class TokenOperation : public OperationBase {
 public:
  TokenOperation(std::string signature, std::uint32_t lanes)
      : signature_(std::move(signature)), lanes_(lanes) {}

  OpKind kind() const override { return OpKind::kAgGemm; }
  Executor executor() const override { return Executor::kCpu; }
  std::string signature() const override { return signature_; }
  Requirements requirements() const override { return {.workspace_bytes = 256, .lanes = lanes_}; }
  Status bind(const kernels::GroupView& group, const kernels::SymmetricView& workspace,
              const kernels::SymmetricView&, std::uint32_t first_lane) override {
    group_ = &group;
    workspace_ = workspace;
    endpoint_ = std::make_unique<kernels::Endpoint>(group, first_lane, lanes_);
    return {};
  }
  std::uint64_t wire_bytes() const override { return endpoint_->bytes_put(); }

  Status pass_token(std::chrono::milliseconds deadline) {
    const kernels::WaitScope scope{group_->session, group_->segment, nullptr, group_->rank(), deadline};
    const std::uint32_t world = group_->world_size(), next = (group_->rank() + 1) % world;
    ++epoch_;
    MK_RETURN_IF_ERROR(endpoint_->put(next, lanes_ - 1, {workspace_.region, 0}, {workspace_.region, 64}, 64,
                                      "token", scope));
    return endpoint_->wait_arrival((group_->rank() + world - 1) % world, lanes_ - 1, epoch_, "token", scope);
  }

 private:
  const std::string signature_;
  const std::uint32_t lanes_;
  const kernels::GroupView* group_ = nullptr;
  kernels::SymmetricView workspace_;
  std::unique_ptr<kernels::Endpoint> endpoint_;
  std::uint64_t epoch_ = 0;
};

Result<std::unique_ptr<OperationState>> create(const std::shared_ptr<GroupCore>& group,
                                               const std::string& signature = "token",
                                               std::uint32_t lanes = 2) {
  return OperationState::create(group, std::unique_ptr<OperationBase>(new TokenOperation(signature, lanes)));
}

Status pass(OperationBase& operation, std::chrono::milliseconds deadline = kLong) {
  return static_cast<TokenOperation&>(operation).pass_token(deadline);
}

Status launch_and_wait(OperationState& state, std::function<Status(OperationBase&)> run) {
  auto pending = state.launch(std::move(run));
  return pending.ok() ? pending->wait() : pending.status();
}

TEST_CASE("launches return at once, run in order and say when they are over") {
  FakeDaemon daemon({.nodes = {"a", "a", "b", "b"}});
  with_cores(daemon, 4, [&](const std::shared_ptr<GroupCore>& group) {
    auto state = create(group);
    check_ok(state.status());
    if (!state.ok()) return;
    std::mutex gate;
    gate.lock();
    std::vector<int> order;
    std::vector<Pending> pending;
    for (int i = 0; i < 20; ++i) {
      auto launched = (*state)->launch([&, i](OperationBase& operation) {
        const std::lock_guard lock(gate);
        order.push_back(i);
        return pass(operation);
      });
      check_ok(launched.status());
      if (launched.ok()) pending.push_back(std::move(*launched));
    }
    CHECK_FALSE(pending.back().done());
    check_status(pending.back().wait_for(10ms), StatusCode::kDeadlineExceeded, "goes on");
    CHECK(eventually([&] { return daemon.look().active >= 1; }));
    gate.unlock();
    for (const Pending& launch : pending) check_ok(launch.wait());
    CHECK(pending.back().done());
    CHECK(order == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19});
    check_ok(group->agree("end", {}));
  });
  CHECK(eventually([&] { return daemon.look().sessions == 0; }));
}

TEST_CASE("a session counts every launch, on the worker or on a stream, and nothing else") {
  FakeDaemon daemon;
  with_cores(daemon, 1, [&](const std::shared_ptr<GroupCore>& group) {
    auto first = create(group, "first"), second = create(group, "second");
    if (!first.ok() || !second.ok()) return check_ok(second.status());
    CHECK(daemon.look().launches == 0);
    for (int i = 0; i < 3; ++i)
      check_ok(launch_and_wait(**first, [](OperationBase& operation) { return pass(operation); }));
    check_ok(launch_and_wait(**second, [](OperationBase& operation) { return pass(operation); }));
    CHECK(daemon.look().launches == 4);
    check_ok((*second)->enqueue([](OperationBase&) { return Status(); }));
    CHECK(daemon.look().launches == 5);
    check_ok((*second)->at_once([](OperationBase& operation) { return operation.status(); }));
    CHECK(daemon.look().launches == 5);
    // One that fails was launched; one that is refused because the group is over was not.
    CHECK_FALSE((*second)
                    ->enqueue([](OperationBase&) {
                      return Status(StatusCode::kInvalidArgument, "argument a is null");
                    })
                    .ok());
    CHECK(daemon.look().launches == 6);
    CHECK(eventually([&] { return !group->status().ok(); }));
    CHECK_FALSE(launch_and_wait(**first, [](OperationBase&) { return Status(); }).ok());
    CHECK_FALSE((*first)->enqueue([](OperationBase&) { return Status(); }).ok());
    CHECK(daemon.look().launches == 6);
    CHECK(daemon.look().fallbacks == 0);
  });
}

TEST_CASE(
    "what is queued on a stream while a launch is not over is rejected, and never just behind its end") {
  FakeDaemon daemon({.nodes = {"a"}});
  with_cores(daemon, 1, [&](const std::shared_ptr<GroupCore>& group) {
    auto state = create(group);
    check_ok(state.status());
    if (!state.ok()) return;
    const auto queue = [&] { return (*state)->enqueue([](OperationBase&) { return Status(); }); };
    for (int i = 0; i < 200; ++i) {
      check_ok(launch_and_wait(**state, [](OperationBase&) { return Status(); }));
      check_ok(queue());
    }
    std::mutex gate;
    gate.lock();
    const auto pending = (*state)->launch([&](OperationBase&) {
      const std::lock_guard<std::mutex> wait(gate);
      return Status();
    });
    const Status rejected = queue();
    gate.unlock();
    check_ok(pending.status());
    if (pending.ok()) (void)pending->wait();
    CHECK(rejected.code() == StatusCode::kFailedPrecondition);
    CHECK_MESSAGE(
        rejected.text().find("token: enqueue() while 1 launches by launch() are not over: launches of a "
                             "group must follow each other") == 0,
        rejected.text());
  });
}

TEST_CASE("destroying an operation waits for its launches") {
  FakeDaemon daemon;
  with_cores(daemon, 2, [](const std::shared_ptr<GroupCore>& group) {
    std::atomic<int> over{0};
    {
      auto state = create(group);
      if (!state.ok()) return check_ok(state.status());
      for (int i = 0; i < 5; ++i) {
        check_ok((*state)
                     ->launch([&](OperationBase& operation) {
                       const Status passed = pass(operation);
                       ++over;
                       return passed;
                     })
                     .status());
      }
    }
    CHECK(over == 5);
    check_ok(group->agree("end", {}));
  });
}

TEST_CASE(
    "signatures that differ are refused before anything exists, naming both ranks and both signatures") {
  FakeDaemon daemon;
  with_cores(daemon, 3, [&](const std::shared_ptr<GroupCore>& group) {
    const auto state = create(group, group->view().rank() == 2 ? "ag_gemm m=7" : "ag_gemm m=8");
    check_status(state.status(), StatusCode::kInvalidArgument, "rank 0 on node node0 made 'ag_gemm m=8'");
    check_status(state.status(), StatusCode::kInvalidArgument, "rank 2 on node node0 made 'ag_gemm m=7'");
    check_ok(group->agree("end", {}));
    CHECK(daemon.look().regions == 0);
    check_ok(group->agree("really", {}));
    // Also when only what lies beyond a ballot's text differs.
    const auto cut = create(group, std::string(600, 'x') + (group->view().rank() == 1 ? "y" : "z"));
    check_status(cut.status(), StatusCode::kInvalidArgument, "rank 1");
  });
}

TEST_CASE("a rank that cannot plan is named on every rank") {
  FakeDaemon daemon;
  with_cores(daemon, 2, [](const std::shared_ptr<GroupCore>& group) {
    Result<std::unique_ptr<OperationBase>> made = Status(StatusCode::kInvalidArgument, "k = 0, at least 1");
    if (group->view().rank() == 0) made = std::unique_ptr<OperationBase>(new TokenOperation("token", 1));
    const auto state = OperationState::create(group, std::move(made));
    check_status(state.status(), StatusCode::kInvalidArgument, "rank 1 on node node0: k = 0, at least 1");
    CHECK(create(group).ok());
  });
}

TEST_CASE(
    "lanes that run out say how many are left; destroyed operations give theirs back with fresh counts") {
  FakeDaemon daemon;
  with_cores(daemon, 2, [](const std::shared_ptr<GroupCore>& group) {
    for (int i = 0; i < 10; ++i) {
      auto first = create(group, "first", 4);
      if (!first.ok()) return check_ok(first.status());
      const auto second = create(group, "second", 3);
      check_status(second.status(), StatusCode::kResourceExhausted,
                   "second needs 3 consecutive lanes, 2 of 6");
      check_status(second.status(), StatusCode::kResourceExhausted, "GroupOptions::lanes >= 7");
      for (int launch = 0; launch < 3; ++launch) {
        check_ok(launch_and_wait(**first, [](OperationBase& operation) { return pass(operation); }));
      }
      CHECK((*first)->wire_bytes() == 3 * 64);
    }
    CHECK(create(group, "all", 6).ok());
  });
}

TEST_CASE("a rank whose operation fails is named to the others, within their wait") {
  FakeDaemon daemon({.nodes = {"a", "b", "c"}});
  with_cores(daemon, 3, [](const std::shared_ptr<GroupCore>& group) {
    auto state = create(group);
    if (!state.ok()) return check_ok(state.status());
    const bool bad = group->view().rank() == 1;
    const auto begin = std::chrono::steady_clock::now();
    const Status status = launch_and_wait(**state, [&](OperationBase& operation) {
      return bad ? Status(StatusCode::kInvalidArgument, "argument a is null") : pass(operation, 1h);
    });
    CHECK(std::chrono::steady_clock::now() - begin < kLong);
    if (bad) {
      check_status(status, StatusCode::kInvalidArgument, "token: argument a is null");
    } else if (!status.ok()) {  // rank 2 -> 0 alone may pass
      check_status(status, StatusCode::kInvalidArgument, "rank 1 on node b: token: argument a is null");
    }
    if (group->view().rank() == 2) CHECK_FALSE(status.ok());
    CHECK(eventually([&] { return !group->status().ok(); }));
    check_status(group->status(), StatusCode::kInvalidArgument, "rank 1 on node b");
    check_status((*state)->launch([](OperationBase&) { return Status(); }).status(),
                 StatusCode::kInvalidArgument, "rank 1 on node b");
    check_status(group->agree("after", {}), StatusCode::kInvalidArgument, "rank 1 on node b");
  });
}

TEST_CASE("the record of a failed group becomes the status of what was running") {
  FakeDaemon daemon;
  std::atomic<int> running{0};
  std::thread breaker([&] {
    CHECK(eventually([&] { return running == 2; }));
    daemon.fail_groups(5, "far", {StatusCode::kUnavailable, "its process was killed"});
  });
  with_cores(daemon, 2, [&](const std::shared_ptr<GroupCore>& group) {
    auto state = create(group);
    if (!state.ok()) return check_ok(state.status());
    const Status status = launch_and_wait(**state, [&](OperationBase& operation) -> Status {
      ++running;
      while (true) MK_RETURN_IF_ERROR(pass(operation, 1h));
    });
    check_status(status, StatusCode::kUnavailable,
                 "token: group 'test': rank 5 on node far: its process was killed");
  });
  breaker.join();
}

TEST_CASE("a daemon that dies ends every wait: operations, arrivals, collective calls") {
  FakeDaemon daemon;
  std::atomic<int> waiting{0};
  std::thread killer([&] {
    CHECK(eventually([&] { return waiting == 3; }));
    daemon.die();
  });
  with_cores(daemon, 4, [&](const std::shared_ptr<GroupCore>& group) {
    auto state = create(group);
    const auto lane = group->reserve_lanes(1);
    if (!state.ok() || !lane.ok()) return check_ok(lane.status());
    const std::string wanted = "daemon of node node0 closed the session socket";
    switch (group->view().rank()) {
      case 0:
        ++waiting;
        return check_status(
            launch_and_wait(**state, [](OperationBase& operation) { return pass(operation, 1h); }),
            StatusCode::kUnavailable, wanted);
      case 1:
        ++waiting;
        return check_status(group->wait_arrival(0, lane.value(), 1, 1h), StatusCode::kUnavailable, wanted);
      case 2: ++waiting; return check_status(group->agree("never", {}), StatusCode::kUnavailable, wanted);
      default: CHECK(eventually([&] { return !group->status().ok(); }));
    }
    check_status(group->status(), StatusCode::kUnavailable, wanted);
    check_status(group->put({0, 0, 0}, lane.value(), {}, 0, 0).status(), StatusCode::kUnavailable, wanted);
  });
  killer.join();
}

TEST_CASE("a full ring that nobody drains ends in a deadline, not in a hang") {
  FakeDaemon daemon;
  daemon.stop_draining();
  with_cores(daemon, 1, [](const std::shared_ptr<GroupCore>& group) {
    auto state = create(group);
    if (!state.ok()) return check_ok(state.status());
    const Status status = launch_and_wait(**state, [](OperationBase& operation) -> Status {
      for (int i = 0; i < 100; ++i) {
        const Status passed = pass(operation, 20ms);
        if (passed.code() == StatusCode::kDeadlineExceeded && contains(passed, "ring")) return passed;
      }
      return {};
    });
    check_status(status, StatusCode::kDeadlineExceeded, "ring");
  });
}

}  // namespace
}  // namespace mkernel::test
