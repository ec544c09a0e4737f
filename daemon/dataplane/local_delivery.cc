#include "daemon/dataplane/local_delivery.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace mkernel::dataplane {
namespace {

constexpr std::uint32_t kPieceBytes =
    256 * 1024;  // about 25 us of one core: how long a copy may hold up others

}  // namespace

Group* LocalDelivery::neighbour_of(Outbound& channel) {
  if (channel.neighbour == nullptr) {
    const GroupPort& port = *channel.group->port;
    const bool self = channel.target == port.rank;
    channel.neighbour = groups_.find(self ? port.key : port.ranks[channel.target].local_key);
  }
  return channel.neighbour;
}

std::uint64_t LocalDelivery::advance(LocalCopy& copy) {
  Outbound& channel = *copy.channel;
  const auto fail = [&](std::int32_t culprit, Status why) {
    failures_.note(*channel.group, culprit, std::move(why));
    copy = {};
    return std::uint64_t{0};
  };
  Group* const neighbour = neighbour_of(channel);
  if (neighbour == nullptr || neighbour->port->rank != channel.target) {
    return fail(static_cast<std::int32_t>(channel.target),
                {StatusCode::kUnavailable, route_text(channel) + ": the target has left (same node)"});
  }
  const std::uint32_t piece = std::min(copy.length - copy.copied, kPieceBytes);
  if (piece > 0) {
    const memory::Region* source = channel.group->regions[copy.source_region].get();
    if (source == nullptr || !memory::in_bounds(copy.source_offset, copy.length, source->bytes)) {
      return fail(static_cast<std::int32_t>(channel.group->port->rank),
                  {StatusCode::kAborted, route_text(channel) + ": local region " +
                                             std::to_string(copy.source_region) +
                                             " was unregistered under a put in progress"});
    }
    transport::Target target;
    Status placed = place_put(*neighbour, channel.group->port->rank, true, copy.target_region,
                              copy.target_offset, copy.length, target);
    if (!placed.ok()) return fail(static_cast<std::int32_t>(channel.target), std::move(placed));
    std::memmove(target.region->host(target.offset + copy.copied),
                 source->host(copy.source_offset + copy.copied), piece);
    copy.copied += piece;
  }
  if (copy.copied == copy.length) {
    publish(channel, *neighbour, copy.length);
    copy = {};
  }
  return piece;
}

void LocalDelivery::publish(Outbound& channel, Group& neighbour, std::uint32_t length) {
  const std::uint64_t count = ++channel.completed;
  const std::size_t arrival = neighbour.channel_index(channel.group->port->rank, channel.lane);
  publish_count(neighbour.arrival_words[arrival], count);
  publish_count(*channel.completed_word, count);
  --channel.group->in_flight;

  for (Counters* counters : {&neighbour.port->channels[arrival], neighbour.session->counters}) {
    bump(counters->arrivals_total, 1);
    bump(counters->arrived_bytes_total, length);
  }
  bump(channel.counters->completed_total, 1);
  bump(channel.group->session->counters->completed_total, 1);
}

}  // namespace mkernel::dataplane
