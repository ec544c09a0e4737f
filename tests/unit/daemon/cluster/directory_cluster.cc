#include "tests/unit/daemon/cluster/directory_cluster.h"

#include <stdexcept>
#include <utility>

namespace mkernel::cluster {

void FakeExecutor::advance(std::int64_t ms) {
  now_ms += ms;
  while (!timers.empty() && timers.begin()->first <= now_ms) {
    const auto timer = timers.begin()->second.lock();
    timers.erase(timers.begin());
    if (timer) (*timer)();
  }
}

struct DirectoryCluster::Node final : PeerBus, session::GroupEvents {
  Node(DirectoryCluster& owner, std::size_t number)
      : cluster(owner), index(number), directory("node" + std::to_string(number), 1000 + number, executor) {
    directory.attach(*this, *this);
  }

  void send(transport::PeerId peer, v1::PeerMessage message) override {
    for (const auto& [link, id] : cluster.ids_) {
      if (link.first == index && id == peer) {
        std::string bytes;  // over a wire, as in life
        message.SerializeToString(&bytes);
        v1::PeerMessage copy;
        if (!copy.ParseFromString(bytes)) throw std::logic_error("unparsable message");
        cluster.wires_[{index, link.second}].push_back(copy);
      }
    }
  }
  void drop(transport::PeerId, const Status& why) override { cluster.dropped.push_back(why.text()); }
  std::vector<std::string> unreachable() const override { return cluster.unreachable; }

  RankView* find(const dataplane::GroupKey& key) {
    for (const auto& rank : cluster.ranks) {
      if (rank->node == index && rank->key == key) return rank.get();
    }
    return nullptr;
  }
  void region_changed(const std::vector<dataplane::GroupKey>& ranks, std::uint32_t rank, std::uint32_t region,
                      const abi::RegionEntry& entry) override {
    for (const dataplane::GroupKey& key : ranks) find(key)->regions[{rank, region}] = entry.bytes;
    ++cluster.region_calls;
  }
  void group_failed(const dataplane::GroupKey& key, std::int32_t culprit, const std::string& node,
                    const Status& why) override {
    RankView& rank = *find(key);
    if (rank.has_lost_a_rank) {
      ++rank.aborts;
    } else {
      note_failure(rank, culprit, node, why);
    }
  }
  static void note_failure(RankView& rank, std::int32_t culprit, const std::string& node, const Status& why) {
    ++rank.failures;
    rank.culprit = culprit;
    rank.failed_on = node;
    rank.failure = why;
  }
  void rank_gone(const dataplane::GroupKey& key, std::uint32_t gone, const std::string& node,
                 const Status& why) override {
    RankView& rank = *find(key);
    rank.gone[gone] = why;
    if (!why.ok() && !std::exchange(rank.has_lost_a_rank, true))
      note_failure(rank, static_cast<std::int32_t>(gone), node, why);
  }
  Status launch_rejected(const dataplane::GroupKey& key, std::uint32_t from, std::uint64_t launch,
                         const Status& why) override {
    RankView& rank = *find(key);
    rank.rejected.emplace_back(from, launch);
    return rank.state.launches < launch ? Status() : why;
  }
  abi::RankState state_of(const dataplane::GroupKey& key) const override {
    for (const auto& rank : cluster.ranks) {
      if (rank->node == index && rank->key == key) return rank->state;
    }
    return {};
  }
  void states_known(const dataplane::GroupKey& key, const std::vector<session::RankReport>& states) override {
    for (const session::RankReport& report : states) find(key)->states[report.rank] = report.state;
  }

  DirectoryCluster& cluster;
  const std::size_t index;
  FakeExecutor executor;
  GroupDirectory directory;
};

DirectoryCluster::DirectoryCluster(std::size_t nodes, unsigned seed) : random(seed) {
  for (std::size_t i = 0; i < nodes; ++i) nodes_.push_back(std::make_unique<Node>(*this, i));
  for (std::size_t i = 0; i < nodes; ++i) {
    for (std::size_t j = 0; j < i; ++j) connect(i, j);
  }
}

DirectoryCluster::~DirectoryCluster() = default;

GroupDirectory& DirectoryCluster::directory(std::size_t node) {
  return nodes_[node]->directory;
}
FakeExecutor& DirectoryCluster::executor(std::size_t node) {
  return nodes_[node]->executor;
}

RankView& DirectoryCluster::join(std::size_t node, const std::string& group, std::uint32_t rank,
                                 std::uint32_t world, std::function<void(session::JoinRequest&)> change) {
  session::JoinRequest request;
  request.key = {++last_session_, 1};
  request.name = group;
  request.world_size = world;
  request.rank = rank;
  request.lanes = 2;
  request.region_capacity = 8;
  request.timeout = std::chrono::milliseconds(1000);
  request.pid = 4000 + static_cast<std::int64_t>(last_session_);
  request.client_name = "client" + std::to_string(last_session_);
  if (change) change(request);
  RankView& view = *ranks.emplace_back(std::make_unique<RankView>());
  view.key = request.key;
  view.node = node;
  directory(node).join(request, [&view](Result<session::FormedGroup> formed) {
    if (view.formed) throw std::logic_error("formed twice");
    view.formed = std::move(formed);
  });
  if (view.formed) throw std::logic_error("called back from inside the call");
  return view;
}

void DirectoryCluster::ready_all() {
  for (const auto& rank : ranks) {
    if (!rank->is_formed() || rank->ready || nodes_[rank->node] == nullptr) continue;
    directory(rank->node).ready(rank->key, [view = rank.get()](const Status& status) {
      view->ready = status;
    });
  }
}

void DirectoryCluster::exchange(RankView& rank, std::uint64_t round, std::uint8_t fill,
                                std::chrono::milliseconds timeout) {
  session::Blob blob;
  blob.fill(static_cast<std::byte>(fill));
  directory(rank.node).exchange(rank.key, round, blob, timeout, [&rank](Result<session::Round> blobs) {
    rank.exchanges.push_back(std::move(blobs));
  });
}

void DirectoryCluster::connect(std::size_t a, std::size_t b) {
  for (const auto& [at, of] : {Link{a, b}, Link{b, a}}) ids_[{at, of}] = ++last_id_;
  for (const auto& [at, of] : {Link{a, b}, Link{b, a}}) {
    directory(at).peer_up({ids_.at({at, of}), "node" + std::to_string(of), 1000 + of, {}});
  }
}

void DirectoryCluster::disconnect(std::size_t a, std::size_t b) {
  for (const auto& [at, of] : {Link{a, b}, Link{b, a}}) {
    const auto id = ids_.extract({at, of});
    wires_.erase({at, of});
    if (id.empty() || nodes_[at] == nullptr) continue;
    directory(at).peer_down(id.mapped(),
                            {StatusCode::kUnavailable, "node" + std::to_string(of) + " is dead"});
  }
}

void DirectoryCluster::kill(std::size_t node) {
  nodes_[node].reset();
  for (std::size_t other = 0; other < nodes_.size(); ++other) disconnect(other, node);
}

void DirectoryCluster::hold(std::size_t from, std::size_t to, bool held) {
  held_[{from, to}] = held;
}

bool DirectoryCluster::step() {
  std::vector<std::function<void()>> choices;
  for (auto& [link, wire] : wires_) {
    if (wire.empty() || held_[link]) continue;
    choices.push_back([this, link = link] {
      const v1::PeerMessage message = wires_[link].front();
      wires_[link].pop_front();
      directory(link.second).received(ids_.at({link.second, link.first}), message);
    });
  }
  for (const auto& node : nodes_) {
    if (node == nullptr || node->executor.tasks.empty()) continue;
    choices.push_back([&executor = node->executor] {
      const auto task = std::move(executor.tasks.front());
      executor.tasks.pop_front();
      task();
    });
  }
  if (choices.empty()) return false;
  choices[std::uniform_int_distribution<std::size_t>(0, choices.size() - 1)(random)]();
  return true;
}

void DirectoryCluster::settle() {
  while (step()) {
  }
}

void DirectoryCluster::advance(std::int64_t ms) {
  for (const auto& node : nodes_) {
    if (node != nullptr) node->executor.advance(ms);
  }
  settle();
}

}  // namespace mkernel::cluster
