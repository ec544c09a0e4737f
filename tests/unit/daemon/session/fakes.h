// Stand-ins around a real SessionServer and a real Proxy: a transport that carries nothing, and a coordinator
// that knows only the sessions of this process.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "daemon/session/group_coordinator.h"
#include "daemon/transport/transport.h"
#include "proto/ipc/fd.h"

namespace mkernel::session::testing {

/// Stops the thread that comes by while it is closed.
class Gate {
 public:
  void close() { closed_ = true; }
  void open() {
    closed_ = false;
    closed_.notify_all();
  }
  /// A thread stands here.
  bool holds() const { return holds_; }
  void pass() {
    if (!closed_) return;
    holds_ = true;
    closed_.wait(true);
    holds_ = false;
  }

 private:
  std::atomic<bool> closed_{false}, holds_{false};
};

class NullTransport final : public transport::Transport {
 public:
  explicit NullTransport(Gate& gate) : gate_(gate) {}
  const transport::Capabilities& capabilities() const override { return capabilities_; }
  std::string local_endpoint() const override { return "null"; }
  void attach(transport::TransportSink&) override {}
  bool holds(const memory::Region&) const override { return false; }
  Status connect(transport::PeerId, const transport::PeerAddress&) override { return {}; }
  void disconnect(transport::PeerId) override {}
  Status open_outbound(transport::ChannelId, transport::PeerId, transport::ChannelKey) override { return {}; }
  Status open_inbound(transport::ChannelId, transport::PeerId, transport::ChannelKey) override { return {}; }
  void close_channel(transport::ChannelId) override {}
  std::size_t submit(std::span<const transport::Put>) override { return 0; }
  /// Between the commands of a round and its rings.
  std::size_t poll() override {
    gate_.pass();
    return 0;
  }
  int event_fd() const override { return event_.get(); }
  void close() override {}

 private:
  transport::Capabilities capabilities_{
      .name = "null", .max_put_bytes = abi::kMaxPutBytes, .max_in_flight_puts = 1024};
  ipc::UniqueFd event_ = std::move(ipc::create_event()).value();
  Gate& gate_;
};

/// Forms groups among the sessions of one server. In a group whose name begins with "remote" every rank but 0
/// is said to live on another node and needs not join. Control thread only, like every coordinator.
class LocalCoordinator final : public GroupCoordinator {
 public:
  explicit LocalCoordinator(boost::asio::io_context& io) : io_(io) {}
  void set_events(GroupEvents& events) { events_ = &events; }

  bool congested() const override { return far_behind; }

  void join(const JoinRequest& request, Formed formed) override {
    ++joins;
    Group& group = groups_[request.name];
    if (group.ranks.count(request.rank) != 0) {
      const Status taken(StatusCode::kAlreadyExists,
                         "rank " + std::to_string(request.rank) + " is held by another session");
      return post([formed, taken] { formed(taken); });
    }
    names_[request.key] = request.name;
    group.ranks[request.rank] = {request.key, request.rails, std::move(formed), nullptr};
    const bool remote = request.name.starts_with("remote");
    if (!remote && group.ranks.size() < request.world_size) return;
    FormedGroup whole;
    whole.instance = ++instances_;
    for (std::uint32_t rank = 0; rank < request.world_size; ++rank) {
      const bool local = !remote || rank == 0;
      FormedMember member{local ? "here" : "elsewhere", {local, 7, {}}};
      member.port.rails = local ? group.ranks.at(rank).rails : remote_rails;
      if (local) member.port.local_key = group.ranks.at(rank).key;
      whole.members.push_back(member);
    }
    for (auto& [rank, member] : group.ranks) {
      post([call = std::move(member.formed), whole] { call(whole); });
    }
  }

  void ready(const dataplane::GroupKey& key, std::function<void(Status)> all_ready) override {
    Group& group = group_of(key);
    member_of(group, key).ready = std::move(all_ready);
    for (auto& [rank, member] : group.ranks) {
      if (!member.ready) return;
    }
    for (auto& [rank, member] : group.ranks) {
      post([call = std::exchange(member.ready, nullptr)] { call(Status()); });
    }
  }

  void announce_region(const dataplane::GroupKey& key, std::uint32_t index,
                       const abi::RegionEntry& entry) override {
    Group& group = group_of(key);
    const std::uint32_t from = rank_of(group, key);
    for (auto& [rank, member] : group.ranks) {
      post(
          [this, to = member.key, from, index, entry] { events_->region_changed({to}, from, index, entry); });
    }
  }

  /// A rank elsewhere has registered a region. Control thread.
  void announce_elsewhere(const std::string& name, std::uint32_t rank, std::uint32_t index,
                          const abi::RegionEntry& entry) {
    for (auto& [here, member] : groups_.at(name).ranks)
      events_->region_changed({member.key}, rank, index, entry);
  }

  void exchange(const dataplane::GroupKey& key, std::uint64_t, const Blob& blob, std::chrono::milliseconds,
                Exchanged done) override {
    Group& group = group_of(key);
    group.blobs[rank_of(group, key)] = {blob, std::move(done)};
    if (group.blobs.size() < group.ranks.size()) return;
    std::vector<Blob> blobs;
    for (auto& [rank, contribution] : group.blobs) blobs.push_back(contribution.first);
    const Round all = std::make_shared<const std::vector<Blob>>(std::move(blobs));
    for (auto& [rank, contribution] : group.blobs) {
      post([call = std::move(contribution.second), all] { call(all); });
    }
    group.blobs.clear();
  }

  void fail(const dataplane::GroupKey& key, std::int32_t culprit, const Status& why) override {
    tell_failure(group_of(key), culprit, why);
  }

  void reject(const dataplane::GroupKey& key, std::uint64_t launch, const Status& why) override {
    const std::uint32_t from = rank_of(group_of(key), key);
    for (auto& [rank, member] : group_of(key).ranks) {
      if (rank == from) continue;
      post([this, to = member.key, from, launch, why] {
        const Status made = events_->launch_rejected(to, from, launch, why);
        if (!made.ok()) tell_failure(group_of(to), static_cast<std::int32_t>(from), made);
      });
    }
  }

  void leave(const dataplane::GroupKey& key) override {
    Group& group = group_of(key);
    group.ranks.erase(rank_of(group, key));
    if (group.ranks.empty()) groups_.erase(names_[key]);
    names_.erase(key);
    ++left;
  }

  void session_ending(dataplane::SessionId, const Status&) override { ++ending; }
  void session_gone(dataplane::SessionId session, const Status& why) override {
    ++gone;
    for (auto name = names_.begin(); name != names_.end();) {
      if (name->first.session != session) {
        ++name;
        continue;
      }
      Group& group = groups_[name->second];
      const std::uint32_t rank = rank_of(group, name->first);
      group.ranks.erase(rank);
      tell_failure(group, static_cast<std::int32_t>(rank), why);
      if (group.ranks.empty()) groups_.erase(name->second);
      name = names_.erase(name);
    }
  }

  std::uint32_t remote_rails = 0;        ///< what ranks elsewhere say
  std::atomic<bool> far_behind = false;  ///< what congested() says
  int joins = 0;                         ///< calls of join()
  int left = 0;                          ///< calls of leave()
  int ending = 0;                        ///< calls of session_ending()
  int gone = 0;                          ///< calls of session_gone()

 private:
  struct Member {
    dataplane::GroupKey key;
    std::uint32_t rails = 0;
    Formed formed;
    std::function<void(Status)> ready;
  };
  struct Group {
    std::map<std::uint32_t, Member> ranks;
    std::map<std::uint32_t, std::pair<Blob, Exchanged>> blobs;
  };

  template <typename Call>
  void post(Call call) {
    boost::asio::post(io_, std::move(call));
  }
  Group& group_of(const dataplane::GroupKey& key) { return groups_.at(names_.at(key)); }
  static std::uint32_t rank_of(const Group& group, const dataplane::GroupKey& key) {
    for (const auto& [rank, member] : group.ranks) {
      if (member.key == key) return rank;
    }
    return ~0U;
  }
  static Member& member_of(Group& group, const dataplane::GroupKey& key) {
    return group.ranks.at(rank_of(group, key));
  }
  void tell_failure(Group& group, std::int32_t culprit, const Status& why) {
    for (auto& [rank, member] : group.ranks) {
      post([this, to = member.key, culprit, why] { events_->group_failed(to, culprit, "here", why); });
    }
  }

  boost::asio::io_context& io_;
  GroupEvents* events_ = nullptr;
  std::uint64_t instances_ = 0;
  std::map<std::string, Group> groups_;
  std::map<dataplane::GroupKey, std::string> names_;
};

}  // namespace mkernel::session::testing
