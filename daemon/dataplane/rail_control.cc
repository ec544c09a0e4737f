// The commands of the control path, carried out on the proxy thread between two rounds.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "daemon/dataplane/group_mark.h"
#include "daemon/dataplane/rail.h"
#include "daemon/memory/touching.h"

namespace mkernel::dataplane {
namespace {

constexpr const char* kStopped = "this proxy has stopped";

/// Forgets puts that no transport has taken yet. Those that are kept move to the front of the array.
template <typename Dropped>
void drop_puts(Session& session, Dropped&& dropped) {
  std::uint32_t kept = 0;
  for (std::uint32_t i = session.first; i < session.count; ++i)
    if (!dropped(session.puts[i])) session.puts[kept++] = session.puts[i];
  session.first = 0;
  session.count = kept;
}

/// From now on what becomes of the rank's channels, and of its peer when no other rank is there, is no
/// failure of the group.
void note_gone(Group& group, std::uint32_t rank) {
  group.gone[rank] = true;
  const auto& ranks = group.port->ranks;
  for (auto peer = group.peers.begin(); peer != group.peers.end(); ++peer) {
    if (peer->second != rank) continue;
    const auto there = [&](const PeerRank& known) {
      const auto at = static_cast<std::size_t>(&known - ranks.data());
      return !known.local && at != group.port->rank && known.peer == peer->first && !group.gone[at];
    };
    const auto other = std::find_if(ranks.begin(), ranks.end(), there);
    if (other == ranks.end()) {
      group.peers.erase(peer);
    } else {
      peer->second = static_cast<std::uint32_t>(other - ranks.begin());
    }
    return;
  }
}

}  // namespace

Session* Rail::find_session(SessionId id) {
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : found->second.get();
}

void Rail::stop(Limit limit) {
  for (Session* session : scheduler_.members()) session->reading = false;
  chores_.push_back([this, deadline = base::deadline_after(limit)](base::WorkBudget&, base::TimePoint now) {
    if (now < deadline && any_in_flight()) return Progress::kWaiting;
    running_ = false;
    return Progress::kDone;
  });
}

void Rail::attach_session(std::shared_ptr<SessionPort> port) {
  const SessionId id = port->id;
  const std::string who = "session " + std::to_string(id) + " (" + port->name + ")";
  auto session = std::make_unique<Session>();
  Status status = running_ ? Status{} : Status(StatusCode::kUnavailable, kStopped);
  for (const auto writer : {abi::RingWriter::kThreads, abi::RingWriter::kGpu}) {
    auto ring = RingReader::open(port->segment, options_.count, writer, options_.index);
    if (ring.ok()) session->rings[static_cast<std::uint32_t>(writer)] = {writer, *ring};
    if (status.ok()) status = ring.status();
  }
  if (status.ok() && (sessions_.contains(id) || port->counters.size() <= options_.index ||
                      port->doorbell.size() <= options_.index)) {
    status = {StatusCode::kInternal,
              "attached twice, or without counters or doorbell of ring " + std::to_string(options_.index)};
  }
  if (status.ok()) status = sleeper_.watch_doorbell(port->doorbell[options_.index].get());
  if (!status.ok()) return sink_.session_failed(id, status.with_context(who));
  session->counters = &port->counters[options_.index];
  session->last_write = base::Clock::now();
  session->port = std::move(port);
  const SessionPort& owner = *session->port;
  scheduler_.add(session.get(), {.user = owner.uid,
                                 .user_weight = owner.user_weight,
                                 .weight = owner.weight,
                                 .bytes_per_second = owner.bytes_per_second,
                                 .requests_per_second = owner.requests_per_second});
  sessions_.emplace(id, std::move(session));
}

void Rail::detach_session(SessionId id, Limit limit, Done drained_done, Done done) {
  Session* session = find_session(id);
  if (session == nullptr) {
    drained_done();
    return done();
  }
  session->reading = false;
  const auto drained = [this, id] {
    const auto first = groups_.all().lower_bound({id, 0});
    return std::all_of(first, groups_.all().lower_bound({id + 1, 0}), [](const auto& entry) {
      return entry.second->failed || entry.second->in_flight == 0;
    });
  };
  chores_.push_back([this, id, drained, deadline = base::deadline_after(limit),
                     drained_done = std::move(drained_done),
                     done = std::move(done)](base::WorkBudget& budget, base::TimePoint now) mutable {
    const Session* detached = find_session(id);
    if (detached != nullptr && now < deadline && !drained()) return Progress::kWaiting;
    if (drained_done) std::exchange(drained_done, nullptr)();
    if (detached != nullptr) {
      if (!close_groups_of(id, budget)) return Progress::kWorked;
      if (detached->closing_groups > 0) return Progress::kWaiting;
      erase_session(id);
    }
    done();
    return Progress::kDone;
  });
}

void Rail::open_group(std::shared_ptr<GroupPort> port, std::function<void(Status)> done) {
  const GroupKey key = port->key;
  Session* session = find_session(key.session);
  if (session == nullptr || groups_.find(key) != nullptr || groups_.closing(key)) {
    return done({StatusCode::kInternal,
                 "group " + port->name + ": session " + std::to_string(key.session) +
                     (session == nullptr ? " is not attached" : " has opened this handle already")});
  }
  auto made = std::make_unique<Group>();
  made->port = std::move(port);
  made->session = session;
  if (Status begun = begin_group(*made); !begun.ok()) return done(begun);
  const std::uint64_t serial = groups_.add(std::move(made)).serial;
  auto opening = std::make_shared<GroupOpening>(tools_);
  chores_.push_back(
      [this, key, serial, opening, done = std::move(done)](base::WorkBudget& budget, base::TimePoint) {
        Group* const group = groups_.find(key, serial);
        if (group == nullptr) {
          done({StatusCode::kCancelled, "the group was left before it was open"});
          return Progress::kDone;
        }
        const std::optional<Status> opened = opening->advance(*group, budget);
        if (!opened) return Progress::kWorked;
        if (opened->ok()) {
          done({});
        } else {
          close_now(*group, [done, why = *opened] { done(why); });
        }
        return Progress::kDone;
      });
}

void Rail::close_group(const GroupKey& key, Limit limit, Done done) {
  const Group* found = groups_.find(key);
  if (found == nullptr && !groups_.closing(key)) return done();
  const std::uint64_t serial = found == nullptr ? 0 : found->serial;
  auto mark = found == nullptr ? nullptr : std::make_shared<GroupMark>(*found);
  chores_.push_back([this, key, serial, mark, deadline = base::deadline_after(limit), done = std::move(done)](
                        base::WorkBudget& budget, base::TimePoint now) {
    Group* const group = groups_.find(key, serial);
    if (group == nullptr) {
      if (groups_.closing(key)) return Progress::kWaiting;
      done();
      return Progress::kDone;
    }
    if (now < deadline && !mark->passed(*group, budget)) return Progress::kWaiting;
    close_now(*group, done);
    return Progress::kDone;
  });
}

void Rail::set_remote_region(const GroupKey& key, std::uint32_t rank, std::uint32_t index,
                             std::uint64_t bytes) {
  Group* group = groups_.find(key);
  if (group == nullptr || rank >= group->port->world_size || index >= group->port->region_capacity) return;
  group->remote_bytes_of(rank, index) = bytes;
}

/// What it still has to get, and all that is put to it from now on, counts as completed.
void Rail::rank_left(const GroupKey& key, std::uint32_t rank) {
  Group* group = groups_.find(key);
  if (group == nullptr || group->failed || rank >= group->port->world_size || group->gone[rank]) return;
  note_gone(*group, rank);
  if (group->port->ranks[rank].local) return;  // who puts to it finds out
  std::vector<transport::ChannelId> channels;
  const std::size_t end = std::min(group->channel_index(rank + 1, 0), group->outbound.size());
  for (std::size_t index = group->channel_index(rank, 0); index < end; ++index) {
    Outbound& channel = group->outbound[index];
    if (!channel.mine) continue;
    channel.local = true;
    if (channel.id != kNoChannel) channels.push_back(std::exchange(channel.id, kNoChannel));
    const std::uint64_t more = channel.submitted - std::exchange(channel.completed, channel.submitted);
    if (more == 0) continue;
    {
      const memory::Touching touching(key.session);
      publish_count(*channel.completed_word, channel.completed);
    }
    group->in_flight -= std::min(more, group->in_flight);
    bump(channel.counters->completed_total, more);
    bump(group->session->counters->completed_total, more);
  }
  drop_puts(*group->session, [&](const transport::Put& put) {
    return std::find(channels.begin(), channels.end(), put.channel) != channels.end();
  });
  auto parting = std::make_shared<Parting>(tools_, std::move(channels));
  chores_.push_back(
      [this, key, serial = group->serial, parting](base::WorkBudget& budget, base::TimePoint now) {
        if (parting->advance(groups_.find(key, serial), budget, now)) return Progress::kDone;
        return parting->waits() ? Progress::kWaiting : Progress::kWorked;
      });
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

/// From here on nobody finds the group; `finish` is called when its channels are closed and its memory is not
/// referred to any more.
void Rail::close_now(Group& group, Done finish) {
  const GroupKey key = group.port->key;
  drop_pending(group);
  end_copies_to(group);
  group.failed = true;  // what is written to it from now on goes nowhere
  ++group.session->closing_groups;
  auto closing = std::make_shared<GroupClosing>(tools_, groups_.take(group));
  chores_.push_back([this, key, closing, session = group.session, finish = std::move(finish)](
                        base::WorkBudget& budget, base::TimePoint now) {
    if (!closing->advance(budget, now)) return closing->waits() ? Progress::kWaiting : Progress::kWorked;
    groups_.closed(key);
    --session->closing_groups;
    finish();
    return Progress::kDone;
  });
}

/// True when the session has no group left in the table.
bool Rail::close_groups_of(SessionId id, base::WorkBudget& budget) {
  while (Group* const group = groups_.first_of(id)) {
    const auto neighbours = static_cast<std::uint32_t>(group->port->ranks.size());
    close_now(*group, [] {});
    if (!budget.left(16 + neighbours)) break;
  }
  return groups_.first_of(id) == nullptr;
}

/// It has no groups any more, closing ones included.
void Rail::erase_session(SessionId id) {
  Session* session = find_session(id);
  sleeper_.unwatch_doorbell(session->port->doorbell[options_.index].get());
  scheduler_.remove(session);
  sessions_.erase(id);
}

/// The puts of other sessions into a group that goes away.
void Rail::end_copies_to(const Group& group) {
  for (const auto& [id, session] : sessions_) {
    LocalCopy& copy = session->copy;
    if (copy.running() && groups_.neighbour(*copy.channel->group, copy.channel->target) == &group) {
      local_.target_left(copy);
    }
  }
}

/// Forgets the group's puts that no transport has taken yet, and counts nothing of it as in flight any more.
void Rail::drop_pending(Group& group) {
  Session& session = *group.session;
  drop_puts(session, [&](const transport::Put& put) {
    const ChannelEnd* end = ends_.find(put.channel);
    return end != nullptr && end->group == &group;
  });
  if (session.copy.running() && session.copy.channel->group == &group) session.copy = {};
  group.in_flight = 0;
}

}  // namespace mkernel::dataplane
