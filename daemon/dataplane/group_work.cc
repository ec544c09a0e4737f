#include "daemon/dataplane/group_work.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <string>
#include <utility>

namespace mkernel::dataplane {
namespace {

/// How long a group that closes waits for its peers to send no more: a message there and one back.
constexpr std::chrono::milliseconds kQuietLimit{100};

std::string rank_text(const Group& group, const char* direction, std::uint32_t other) {
  return "group " + group.port->name + ": rank " + std::to_string(group.port->rank) + direction +
         std::to_string(other);
}

}  // namespace

std::optional<Status> GroupOpening::advance(Group& group, base::WorkBudget& budget) try {
  const std::size_t count = group.channel_count();
  while (group.outbound.size() < count) {
    add_channel(group, tools_.traits);
    if (!budget.left(2)) return std::nullopt;
  }
  while (opened_ < count) {
    MK_RETURN_IF_ERROR(open_channel(group, opened_));
    ++opened_;
    if (!budget.left(16)) return std::nullopt;
  }
  if (numbered_ == 0) group.session->channels.grow(group.port->first_channel + count);
  while (numbered_ < count) {
    MK_RETURN_IF_ERROR(number_channel(group, numbered_));
    ++numbered_;
    if (numbered_ < count && !budget.left(1)) return std::nullopt;
  }
  return Status{};
} catch (const std::bad_alloc&) {
  return Status{StatusCode::kResourceExhausted, "group " + group.port->name + ": no memory left for its " +
                                                    std::to_string(group.channel_count()) + " channels"};
}

/// Both ends of a channel are on the rail that its source's lanes go over.
Status GroupOpening::open_channel(Group& group, std::size_t index) {
  Outbound& out = group.outbound[index];
  if (out.local) return {};
  if (out.mine) MK_RETURN_IF_ERROR(open_outbound(group, out));
  const abi::RingShare share = group.port->ranks[out.target].ring_share(tools_.traits.count);
  return share.ring(out.lane) == tools_.traits.index ? open_inbound(group, out) : Status{};
}

Status GroupOpening::open_outbound(Group& group, Outbound& out) {
  const GroupPort& port = *group.port;
  const transport::ChannelId id = tools_.ends.acquire({&group, &out, {}});
  const Status opened = tools_.transport.open_outbound(
      id, port.ranks[out.target].peer, channel_key(port.instance, port.rank, out.target, out.lane));
  if (!opened.ok()) {
    tools_.ends.release(id);
    return opened.with_context(rank_text(group, " -> rank ", out.target));
  }
  out.id = id;
  group.open_channels.push_back(id);
  return {};
}

/// The channel that comes the other way.
Status GroupOpening::open_inbound(Group& group, const Outbound& out) {
  const GroupPort& port = *group.port;
  const std::uint32_t source = out.target;
  const transport::ChannelId id = tools_.ends.acquire({&group, nullptr, {source, out.lane, 0}});
  const Status opened = tools_.transport.open_inbound(
      id, port.ranks[source].peer, channel_key(port.instance, source, port.rank, out.lane));
  if (!opened.ok()) {
    tools_.ends.release(id);
    return opened.with_context(rank_text(group, " <- rank ", source));
  }
  group.open_channels.push_back(id);
  return {};
}

Status GroupOpening::number_channel(Group& group, std::size_t index) {
  const std::size_t number = group.port->first_channel + index;
  Outbound*& entry = group.session->channels[number];
  if (entry != nullptr) {
    return {StatusCode::kInternal, "channel number " + std::to_string(number) + " is taken by another group"};
  }
  entry = &group.outbound[index];
  return {};
}

bool close_channels(const GroupTools& tools, Group& group, base::WorkBudget& budget) {
  while (!group.open_channels.empty()) {
    const transport::ChannelId id = group.open_channels.back();
    tools.transport.close_channel(id);
    tools.ends.release(id);
    group.open_channels.pop_back();
    if (!budget.left(16)) break;
  }
  return group.open_channels.empty();
}

bool Quieting::advance(const std::vector<transport::ChannelId>& channels, base::WorkBudget& budget,
                       base::TimePoint now) {
  waits_ = false;
  while (stopped_ < channels.size()) {
    transport_.quiesce(channels[stopped_++]);
    give_up_ = std::min(now, base::TimePoint::max() - kQuietLimit) + kQuietLimit;
    if (!budget.left(4)) return false;
  }
  while (quiet_ < channels.size() && now < give_up_) {
    waits_ = !transport_.quiet(channels[quiet_]);
    if (waits_) return false;
    ++quiet_;
    if (!budget.left(4)) return false;
  }
  quiet_ = channels.size();
  return true;
}

bool Parting::advance(Group* group, base::WorkBudget& budget, base::TimePoint now) {
  if (group == nullptr) return true;
  // What has been closed meanwhile, for a region that had to go, is somebody else's now.
  const auto closed = [group](transport::ChannelId id) {
    return std::find(group->open_channels.begin(), group->open_channels.end(), id) ==
           group->open_channels.end();
  };
  if (std::any_of(channels_.begin(), channels_.end(), closed)) return true;
  if (!quieting_.advance(channels_, budget, now)) return false;
  for (const transport::ChannelId id : channels_) {
    tools_.transport.close_channel(id);
    tools_.ends.release(id);
    std::erase(group->open_channels, id);
  }
  return true;
}

bool GroupClosing::advance(base::WorkBudget& budget, base::TimePoint now) {
  if (!quieting_.advance(group_->open_channels, budget, now)) return false;
  if (!close_channels(tools_, *group_, budget)) return false;
  if (!forget_regions(budget) || !free_numbers(budget)) return false;
  group_.reset();
  return true;
}

bool GroupClosing::forget_regions(base::WorkBudget& budget) {
  for (auto* regions : {&group_->regions, &group_->retired}) {
    while (!regions->empty()) {
      if (regions->back() != nullptr) tools_.transport.forget(*regions->back());
      regions->pop_back();
      if (!budget.left(32)) return false;
    }
  }
  return true;
}

bool GroupClosing::free_numbers(base::WorkBudget& budget) {
  auto& channels = group_->session->channels;
  while (freed_ < group_->outbound.size()) {
    const std::size_t number = group_->port->first_channel + freed_;
    if (number < channels.size() && channels[number] == &group_->outbound[freed_]) channels[number] = nullptr;
    ++freed_;
    if (!budget.left(1)) return false;
  }
  return true;
}

}  // namespace mkernel::dataplane
