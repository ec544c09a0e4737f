// The commands of the control path, carried out on the proxy thread between two rounds.
#include <algorithm>
#include <string>
#include <utility>

#include "daemon/dataplane/rail.h"

namespace mkernel::dataplane {
namespace {

constexpr const char* kStopped = "this proxy has stopped";

/// Waits until every slot that was in the ring at the time of its making has been taken, and every put taken
/// by then has completed. Later puts of the same group hold up nobody.
class GroupMark {
 public:
  GroupMark(const Session* session, const Group& group) {
    if (session != nullptr && session->reading) position_ = session->ring.position() + session->ring.depth();
    note_submitted(group);
  }

  bool passed(const Session* session, const Group* group) {
    if (group == nullptr) return true;
    if (session != nullptr && session->reading) {
      if (session->ring.position() < position_) return false;
      if (!std::exchange(ring_passed_, true)) note_submitted(*group);
    }
    return group->failed || all_completed(*group);
  }

 private:
  void note_submitted(const Group& group) {
    submitted_.clear();
    for (const Outbound& channel : group.outbound) submitted_.push_back(channel.submitted);
  }
  bool all_completed(const Group& group) const {
    for (std::size_t i = 0; i < submitted_.size(); ++i) {
      if (group.outbound[i].completed < submitted_[i]) return false;
    }
    return true;
  }

  std::uint64_t position_ = 0;
  bool ring_passed_ = false;
  std::vector<std::uint64_t> submitted_;
};

}  // namespace

void Rail::drain(std::function<bool()> drained, Limit limit, Done finish) {
  drains_.push_back({std::move(drained), base::deadline_after(limit), std::move(finish)});
}

Session* Rail::find_session(SessionId id) {
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : found->second.get();
}

void Rail::stop(Limit limit) {
  for (Session* session : scheduler_.members()) session->reading = false;
  drain([this] { return !any_in_flight(); }, limit, [this] { running_ = false; });
}

void Rail::attach_session(std::shared_ptr<SessionPort> port) {
  const SessionId id = port->id;
  const std::string who = "session " + std::to_string(id) + " (" + port->name + ")";
  auto ring = RingReader::open(port->segment, options_.index);
  Status status = running_ ? ring.status() : Status(StatusCode::kUnavailable, kStopped);
  if (status.ok() && (sessions_.contains(id) || port->counters.size() <= options_.index ||
                      port->doorbell.size() <= options_.index)) {
    status = {StatusCode::kInternal,
              "attached twice, or without counters or doorbell of ring " + std::to_string(options_.index)};
  }
  if (status.ok()) status = sleeper_.watch_doorbell(port->doorbell[options_.index].get());
  if (!status.ok()) return sink_.session_failed(id, status.with_context(who));
  auto session = std::make_unique<Session>();
  session->counters = &port->counters[options_.index];
  session->ring = std::move(ring).value();
  session->last_write = base::Clock::now();
  session->port = std::move(port);
  scheduler_.add(session.get());
  sessions_.emplace(id, std::move(session));
}

void Rail::detach_session(SessionId id, Limit limit, Done done) {
  Session* session = find_session(id);
  if (session == nullptr) return done();
  session->reading = false;
  const auto drained = [this, id] {
    return std::all_of(groups_.all().begin(), groups_.all().end(), [id](const auto& entry) {
      return entry.first.session != id || entry.second->failed || entry.second->in_flight == 0;
    });
  };
  drain(drained, limit, [this, id, done = std::move(done)] {
    erase_session(id);
    done();
  });
}

void Rail::open_group(std::shared_ptr<GroupPort> port, const std::function<void(Status)>& done) {
  const GroupKey key = port->key;
  Session* session = find_session(key.session);
  if (session == nullptr || groups_.find(key) != nullptr) {
    return done({StatusCode::kInternal,
                 "group " + port->name + ": session " + std::to_string(key.session) +
                     (session == nullptr ? " is not attached" : " has opened this handle already")});
  }
  auto owned = std::make_unique<Group>();
  owned->port = std::move(port);
  owned->session = session;
  if (Status built = build_group(*owned, traits_); !built.ok()) return done(built);
  Group& group = groups_.add(std::move(owned));
  const std::uint32_t first = group.port->first_channel;
  if (session->channels.size() < first + group.outbound.size()) {
    session->channels.resize(first + group.outbound.size());
  }
  for (std::size_t i = 0; i < group.outbound.size(); ++i) {
    Outbound*& entry = session->channels[first + i];
    if (entry != nullptr) {
      const std::string taken = std::to_string(first + i);
      erase_group(key);
      return done({StatusCode::kInternal, "channel number " + taken + " is taken by another group"});
    }
    entry = &group.outbound[i];
  }
  const Status opened = open_channels(group);
  if (!opened.ok()) erase_group(key);
  done(opened);
}

/// Both ends of a channel are on the rail that its source's lanes go over.
Status Rail::open_channels(Group& group) {
  const GroupPort& port = *group.port;
  for (std::uint32_t rank = 0; rank < port.world_size; ++rank) {
    const abi::RingShare share = port.ranks[rank].ring_share(options_.count);
    for (std::uint32_t lane = 0; lane < port.lanes; ++lane) {
      const Outbound& out = group.outbound[group.channel_index(rank, lane)];
      if (out.local) continue;
      if (out.mine) MK_RETURN_IF_ERROR(open_outbound(group, rank, lane));
      if (share.ring(lane) == options_.index) MK_RETURN_IF_ERROR(open_inbound(group, rank, lane));
    }
  }
  return {};
}

Status Rail::open_outbound(Group& group, std::uint32_t rank, std::uint32_t lane) {
  const GroupPort& port = *group.port;
  Outbound& out = group.outbound[group.channel_index(rank, lane)];
  const transport::ChannelId id = ends_.acquire({&group, &out, {}});
  const Status opened =
      transport_.open_outbound(id, port.ranks[rank].peer, channel_key(port.instance, port.rank, rank, lane));
  if (!opened.ok()) {
    ends_.release(id);
    return opened.with_context("group " + port.name + ": rank " + std::to_string(port.rank) + " -> rank " +
                               std::to_string(rank));
  }
  out.id = id;
  group.open_channels.push_back(id);
  return {};
}

Status Rail::open_inbound(Group& group, std::uint32_t rank, std::uint32_t lane) {
  const GroupPort& port = *group.port;
  const transport::ChannelId id = ends_.acquire({&group, nullptr, {rank, lane, 0}});
  const Status opened =
      transport_.open_inbound(id, port.ranks[rank].peer, channel_key(port.instance, rank, port.rank, lane));
  if (!opened.ok()) {
    ends_.release(id);
    return opened.with_context("group " + port.name + ": rank " + std::to_string(port.rank) + " <- rank " +
                               std::to_string(rank));
  }
  group.open_channels.push_back(id);
  return {};
}

void Rail::close_group(const GroupKey& key, Limit limit, Done done) {
  Group* group = groups_.find(key);
  if (group == nullptr) return done();
  auto mark = std::make_shared<GroupMark>(group->session, *group);
  drain([this, key, mark] { return mark->passed(find_session(key.session), groups_.find(key)); }, limit,
        [this, key, done = std::move(done)] {
          erase_group(key);
          done();
        });
}

void Rail::set_region(const GroupKey& key, std::uint32_t index,
                      std::shared_ptr<const memory::Region> region) {
  Group* group = groups_.find(key);
  if (group == nullptr || index >= group->regions.size()) return;
  retire_region(key, index);
  group->remote_bytes_of(group->port->rank, index) = region->bytes;  // puts to itself
  group->regions[index] = std::move(region);
}

void Rail::clear_region(const GroupKey& key, std::uint32_t index, Limit limit, Done done) {
  Group* group = groups_.find(key);
  if (group == nullptr || index >= group->regions.size()) return done();
  auto mark = std::make_shared<GroupMark>(group->session, *group);
  drain([this, key, mark] { return mark->passed(find_session(key.session), groups_.find(key)); }, limit,
        [this, key, index, done = std::move(done)] {
          retire_region(key, index);
          release_retired();
          done();
        });
}

void Rail::set_remote_region(const GroupKey& key, std::uint32_t rank, std::uint32_t index,
                             std::uint64_t bytes) {
  Group* group = groups_.find(key);
  if (group == nullptr || rank >= group->port->world_size || index >= group->port->region_capacity) return;
  group->remote_bytes_of(rank, index) = bytes;
}

void Rail::connect_peer(transport::PeerId peer, const transport::PeerAddress& address) {
  if (!running_) return;
  const Status status = transport_.connect(peer, address);
  if (!status.ok()) events_.peer_failed(peer, status);
}

void Rail::disconnect_peer(transport::PeerId peer) {
  if (running_) transport_.disconnect(peer);
}

void Rail::receive_from_peer(transport::PeerId peer, const std::vector<std::byte>& message) {
  if (running_) transport_.receive_from_peer(peer, message);
}

Status Rail::set_link(transport::PeerId peer, const transport::LinkShape& shape) {
  return running_ ? transport_.set_link(peer, shape) : Status(StatusCode::kUnavailable, kStopped);
}

// Closes the channels first: from then on the transport touches no memory of the group.
void Rail::erase_group(const GroupKey& key) {
  Group* group = groups_.find(key);
  if (group == nullptr) return;
  drop_pending(*group);
  for (const transport::ChannelId id : group->open_channels) {
    transport_.close_channel(id);
    ends_.release(id);
  }
  for (const auto* regions : {&group->regions, &group->retired}) {
    for (const auto& region : *regions) {
      if (region != nullptr) transport_.forget(*region);
    }
  }
  for (Outbound*& channel : group->session->channels) {
    if (channel != nullptr && channel->group == group) channel = nullptr;
  }
  groups_.erase(*group);
}

void Rail::erase_session(SessionId id) {
  Session* session = find_session(id);
  if (session == nullptr) return;
  for (auto at = groups_.all().lower_bound({id, 0}); at != groups_.all().end() && at->first.session == id;
       at = groups_.all().lower_bound({id, 0})) {
    erase_group(GroupKey(at->first));
  }
  sleeper_.unwatch_doorbell(session->port->doorbell[options_.index].get());
  scheduler_.remove(session);
  sessions_.erase(id);
}

/// Forgets the group's puts that no transport has taken yet, and counts nothing of it as in flight any more.
/// The puts that are kept move to the front of the array.
void Rail::drop_pending(Group& group) {
  Session& session = *group.session;
  std::uint32_t kept = 0;
  for (std::uint32_t i = session.first; i < session.count; ++i) {
    const ChannelEnd* end = ends_.find(session.puts[i].channel);
    if (end == nullptr || end->group != &group) session.puts[kept++] = session.puts[i];
  }
  session.first = 0;
  session.count = kept;
  if (session.copy.running() && session.copy.channel->group == &group) session.copy = {};
  group.in_flight = 0;
}

/// Refuses new puts on the region; the reference stays until nobody can be in the middle of using it.
void Rail::retire_region(const GroupKey& key, std::uint32_t index) {
  Group* group = groups_.find(key);
  if (group == nullptr || group->regions[index] == nullptr) return;
  group->remote_bytes_of(group->port->rank, index) = 0;
  transport_.retire(*group->regions[index]);
  group->retired.push_back(std::exchange(group->regions[index], nullptr));
  has_retired_ = true;
}

void Rail::release_retired() {
  if (!std::exchange(has_retired_, false)) return;
  for (const auto& [key, group] : groups_.all()) {
    const Session& session = *group->session;
    std::erase_if(group->retired, [&](const std::shared_ptr<const memory::Region>& region) {
      const auto uses = [&region](const transport::Put& put) { return put.source == region.get(); };
      if (transport_.holds(*region) ||
          std::any_of(session.puts.begin() + session.first, session.puts.begin() + session.count, uses)) {
        return false;
      }
      transport_.forget(*region);
      return true;
    });
    has_retired_ = has_retired_ || !group->retired.empty();
  }
}

}  // namespace mkernel::dataplane
