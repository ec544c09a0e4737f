#include "daemon/dataplane/channel_table.h"

#include <algorithm>
#include <string>

#include "proto/abi/work_request.h"

namespace mkernel::dataplane {
namespace {

Status check_port(const GroupPort& port) {
  const auto wrong = [&port](const std::string& what) {
    return Status{StatusCode::kInternal, "group " + port.name + ": " + what};
  };
  if (port.world_size == 0 || port.world_size > abi::kMaxWorldSize || port.rank >= port.world_size) {
    return wrong("rank " + std::to_string(port.rank) + " of world size " + std::to_string(port.world_size));
  }
  if (port.lanes == 0 || port.lanes > abi::kMaxLanes) return wrong(std::to_string(port.lanes) + " lanes");
  if (port.region_capacity > abi::kMaxRegions) {
    return wrong("region capacity " + std::to_string(port.region_capacity));
  }
  const std::size_t channels = std::size_t{port.world_size} * port.lanes;
  if (port.first_channel + channels > abi::kMax24) {
    return wrong("channels from " + std::to_string(port.first_channel) + " do not fit 24 bits");
  }
  if (port.ranks.size() != port.world_size || port.channels.size() != channels) {
    return wrong("port lists " + std::to_string(port.ranks.size()) + " ranks and " +
                 std::to_string(port.channels.size()) + " channels");
  }
  return {};
}

}  // namespace

transport::ChannelId ChannelEnds::acquire(const ChannelEnd& end) {
  if (free_.empty()) {
    const std::size_t id = ends_.size();
    ends_.grow(id + 1);
    ends_[id] = end;
    return static_cast<transport::ChannelId>(id);
  }
  const transport::ChannelId id = free_.back();
  free_.pop_back();
  ends_[id] = end;
  return id;
}

void ChannelEnds::release(transport::ChannelId id) {
  ends_[id] = {};
  free_.push_back(id);
}

Status begin_group(Group& group) {
  GroupPort& port = *group.port;
  MK_RETURN_IF_ERROR(check_port(port));
  abi::GroupSegment layout{};
  abi::layout_group(layout, port.world_size, port.rank, port.lanes, port.region_capacity);
  if (port.segment.bytes() < layout.bytes) {
    return {StatusCode::kInternal, "group " + port.name + ": segment of " +
                                       std::to_string(port.segment.bytes()) + " bytes, its layout needs " +
                                       std::to_string(layout.bytes)};
  }
  group.arrival_words = port.segment.at<std::uint64_t>(layout.arrivals_offset);
  group.completed_words = port.segment.at<std::uint64_t>(layout.completed_offset);
  group.regions.resize(port.region_capacity);
  group.remote_bytes.grow(std::size_t{port.world_size} * port.region_capacity);
  group.outbound.reserve(group.channel_count());
  group.neighbours.resize(port.world_size);
  group.gone.resize(port.world_size);
  for (std::uint32_t rank = 0; rank < port.world_size; ++rank) {
    if (!port.ranks[rank].local && rank != port.rank) group.peers.emplace_back(port.ranks[rank].peer, rank);
  }
  const auto same = [](const auto& one, const auto& other) { return one.first == other.first; };
  std::sort(group.peers.begin(), group.peers.end());
  group.peers.erase(std::unique(group.peers.begin(), group.peers.end(), same), group.peers.end());
  return {};
}

void add_channel(Group& group, const RailTraits& rail) {
  GroupPort& port = *group.port;
  const std::size_t at = group.outbound.size();
  const auto target = static_cast<std::uint32_t>(at / port.lanes);
  Outbound& channel = group.outbound.emplace_back();
  channel.group = &group;
  channel.target = target;
  channel.lane = static_cast<std::uint32_t>(at % port.lanes);
  channel.mine = port.ranks[port.rank].ring_share(rail.count).ring(channel.lane) == rail.index;
  channel.local = port.ranks[target].local || target == port.rank || group.gone[target];
  channel.host_only = channel.local || !rail.gpu_memory;
  channel.max_put_bytes = channel.local ? abi::kMaxPutBytes : std::min(rail.max_put_bytes, abi::kMaxPutBytes);
  channel.completed_word = group.completed_words + at;
  channel.counters = &port.channels[at];
  channel.remote_bytes =
      std::span(group.remote_bytes).subspan(std::size_t{target} * port.region_capacity, port.region_capacity);
}

Status build_group(Group& group, const RailTraits& rail) {
  MK_RETURN_IF_ERROR(begin_group(group));
  while (group.outbound.size() < group.channel_count()) add_channel(group, rail);
  return {};
}

std::string route_text(const Outbound& channel) {
  return "rank " + std::to_string(channel.group->port->rank) + " -> rank " + std::to_string(channel.target) +
         " of group " + channel.group->port->name;
}

}  // namespace mkernel::dataplane
