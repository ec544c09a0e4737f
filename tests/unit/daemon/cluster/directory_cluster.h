// Several group directories joined by a fake bus: messages between two nodes keep their order, everything
// else happens in a random order that the seed decides. Time stands still unless a test moves it.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "daemon/cluster/group_directory.h"

namespace mkernel::cluster {

/// Tasks and timers of one node; run by the cluster.
class FakeExecutor final : public Executor {
 public:
  void post(Task task) override { tasks.push_back(std::move(task)); }
  Timer call_after(std::chrono::milliseconds delay, Task task) override {
    const auto timer = std::make_shared<Task>(std::move(task));
    timers.emplace(now_ms + delay.count(), timer);
    return timer;
  }
  std::int64_t unix_ms() const override { return 1'000'000 + now_ms + skew_ms; }

  /// Moves the clock and runs what is due.
  void advance(std::int64_t ms);

  std::deque<Task> tasks;
  std::multimap<std::int64_t, std::weak_ptr<Task>> timers;
  std::int64_t now_ms = 0;
  std::int64_t skew_ms = 0;  ///< what this node's wall clock is wrong by
};

/// What the session layer saw of one rank.
struct RankView {
  dataplane::GroupKey key;
  std::size_t node = 0;
  std::optional<Result<session::FormedGroup>> formed;
  std::optional<Status> ready;
  std::vector<Result<session::Round>> exchanges;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> regions;
  int failures = 0;
  std::int32_t culprit = -2;
  std::string failed_on;
  Status failure;
  bool has_lost_a_rank = false;                    ///< which ended its group; then
  int aborts = 0;                                  ///< how often it failed as a whole
  std::map<std::uint32_t, Status> gone;            ///< by rank, OK: it left in peace
  std::map<std::uint32_t, abi::RankState> states;  ///< of the others, when the group has failed
  abi::RankState state{};                          ///< its own
  std::vector<std::pair<std::uint32_t, std::uint64_t>> rejected;  ///< (rank, launch), of the others

  bool is_formed() const { return formed && formed->ok(); }
  bool is_ready() const { return ready && ready->ok(); }
  Status join_status() const { return !formed ? Status(StatusCode::kUnknown, "pending") : formed->status(); }
};

class DirectoryCluster {
 public:
  /// Nodes "node0", "node1", ... that all see each other.
  explicit DirectoryCluster(std::size_t nodes, unsigned seed = 1);
  ~DirectoryCluster();

  GroupDirectory& directory(std::size_t node);
  FakeExecutor& executor(std::size_t node);

  /// A new session's rank joins; the view is the cluster's and stays valid.
  RankView& join(std::size_t node, const std::string& group, std::uint32_t rank, std::uint32_t world,
                 std::function<void(session::JoinRequest&)> change = {});
  /// Calls ready() for every formed rank that has not yet done so.
  void ready_all();
  void exchange(RankView& rank, std::uint64_t round, std::uint8_t fill, std::chrono::milliseconds timeout);

  void connect(std::size_t a, std::size_t b);
  /// Both sides see the other die; what is on the way is lost.
  void disconnect(std::size_t a, std::size_t b);
  /// The node vanishes with everything in it; the others see it die.
  void kill(std::size_t node);

  /// Messages from `from` to `to` stay on the way until released.
  void hold(std::size_t from, std::size_t to, bool held = true);

  /// `from` says something of its own making.
  void say(std::size_t from, std::size_t to, const v1::PeerMessage& message) {
    wires_[{from, to}].push_back(message);
  }

  bool step();                    ///< one random thing happens; false when nothing can
  void settle();                  ///< until nothing can happen any more
  void advance(std::int64_t ms);  ///< every node's clock, then settle()

  std::size_t region_calls = 0;      ///< of GroupEvents::region_changed(), on all nodes
  std::vector<std::string> dropped;  ///< reasons of PeerBus::drop()
  std::vector<std::string> unreachable;
  std::vector<std::unique_ptr<RankView>> ranks;
  std::mt19937 random;

 private:
  struct Node;
  using Link = std::pair<std::size_t, std::size_t>;

  std::vector<std::unique_ptr<Node>> nodes_;
  std::map<Link, std::deque<v1::PeerMessage>> wires_;
  std::map<Link, bool> held_;
  std::map<Link, transport::PeerId> ids_;  ///< (at, of) -> id
  transport::PeerId last_id_ = 0;
  std::uint64_t last_session_ = 0;
};

}  // namespace mkernel::cluster
