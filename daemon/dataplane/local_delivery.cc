#include "daemon/dataplane/local_delivery.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "daemon/memory/touching.h"

namespace mkernel::dataplane {
namespace {

constexpr std::uint32_t kPieceBytes =
    256 * 1024;  // about 25 us of one core: how long a copy may hold up others

}  // namespace

void LocalDelivery::fail(LocalCopy& copy, std::uint32_t culprit, Status why) {
  failures_.note(*copy.channel->group, static_cast<std::int32_t>(culprit), std::move(why));
  copy = {};
}

void LocalDelivery::target_left(LocalCopy& copy) {
  Outbound& channel = *copy.channel;
  {
    const memory::Touching touching(channel.group->port->key.session);
    publish_count(*channel.completed_word, ++channel.completed);
  }
  --channel.group->in_flight;
  bump(channel.counters->completed_total, 1);
  bump(channel.group->session->counters->completed_total, 1);
  copy = {};
}

void LocalDelivery::target_unregistered(LocalCopy& copy) {
  const Outbound& channel = *copy.channel;
  fail(copy, channel.target,
       {StatusCode::kAborted, route_text(channel) + ": region " + std::to_string(copy.target_region) +
                                  " was unregistered under a put in progress, which did not end in time"});
}

bool LocalDelivery::begin(LocalCopy& copy, const Group& neighbour) {
  const Outbound& channel = *copy.channel;
  const memory::Region* source = channel.group->regions[copy.source_region].get();
  if (source == nullptr || !memory::in_bounds(copy.source_offset, copy.length, source->bytes)) {
    fail(copy, channel.group->port->rank,
         {StatusCode::kAborted, route_text(channel) + ": local region " + std::to_string(copy.source_region) +
                                    " was unregistered under a put in progress"});
    return false;
  }
  transport::Target target;
  Status placed = place_put(neighbour, channel.group->port->rank, true, copy.target_region,
                            copy.target_offset, copy.length, target);
  if (!placed.ok()) {
    fail(copy, channel.target, std::move(placed));
    return false;
  }
  copy.source = source;
  copy.target = target.region;
  return true;
}

std::uint64_t LocalDelivery::advance(LocalCopy& copy) {
  Outbound& channel = *copy.channel;
  Group* const neighbour = groups_.neighbour(*channel.group, channel.target);
  if (neighbour == nullptr) {
    target_left(copy);
    return 0;
  }
  const std::uint32_t piece = std::min(copy.length - copy.copied, kPieceBytes);
  if (piece > 0) {
    if (copy.source == nullptr && !begin(copy, *neighbour)) return 0;
    // The source is of the session in turn, of the same user.
    const memory::Touching touching(copy.target->session);
    std::memmove(copy.target->host(copy.target_offset + copy.copied),
                 copy.source->host(copy.source_offset + copy.copied), piece);
    copy.copied += piece;
  }
  if (copy.copied == copy.length) {
    publish(channel, *neighbour, copy.length);
    copy = {};
  }
  return piece;
}

void LocalDelivery::publish(Outbound& channel, Group& neighbour, std::uint32_t length) {
  Group& group = *channel.group;
  GroupPort& port = *neighbour.port;
  const std::uint64_t count = ++channel.completed;
  const std::size_t arrival = std::size_t{group.port->rank} * port.lanes + channel.lane;
  {
    const memory::Touching touching(port.key.session);
    publish_count(neighbour.arrival_words[arrival], count);
  }
  publish_count(*channel.completed_word, count);
  --group.in_flight;

  const auto arrived = [length](Counters& counters) {
    bump(counters.arrivals_total, 1);
    bump(counters.arrived_bytes_total, length);
  };
  arrived(port.channels[arrival]);
  arrived(*neighbour.session->counters);
  bump(channel.counters->completed_total, 1);
  bump(group.session->counters->completed_total, 1);
}

}  // namespace mkernel::dataplane
