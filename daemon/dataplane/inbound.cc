#include "daemon/dataplane/inbound.h"

#include <algorithm>
#include <string>

#include "daemon/memory/touching.h"

namespace mkernel::dataplane {

Status EventSink::place(transport::ChannelId channel, std::uint16_t region, std::uint64_t offset,
                        std::uint32_t length, transport::Target& target) {
  ChannelEnd* end = ends_.find(channel);
  if (end == nullptr || end->outbound != nullptr) {
    return {StatusCode::kNotFound, "no inbound channel has id " + std::to_string(channel)};
  }
  Group& group = *end->group;
  MK_RETURN_IF_ERROR(place_put(group, end->inbound.source, host_only_, region, offset, length, target));
  const std::size_t at = group.channel_index(end->inbound.source, end->inbound.lane);
  bump(group.port->channels[at].arrived_bytes_total, length);
  bump(group.session->counters->arrived_bytes_total, length);
  return {};
}

void EventSink::arrived(transport::ChannelId channel, std::uint64_t count) {
  ChannelEnd* end = ends_.find(channel);
  if (end == nullptr || end->outbound != nullptr || count <= end->inbound.arrived) return;
  const std::uint64_t more = count - std::exchange(end->inbound.arrived, count);
  Group& group = *end->group;
  const std::size_t at = group.channel_index(end->inbound.source, end->inbound.lane);
  const memory::Touching touching(group.port->key.session);
  if (!transport_publishes_) publish_count(group.arrival_words[at], count);
  bump(group.port->channels[at].arrivals_total, more);
  bump(group.session->counters->arrivals_total, more);
}

Status EventSink::arrival_word(transport::ChannelId channel, transport::ArrivalWord& place) {
  ChannelEnd* end = ends_.find(channel);
  if (end == nullptr || end->outbound != nullptr) {
    return {StatusCode::kNotFound, "no inbound channel has id " + std::to_string(channel)};
  }
  const Group& group = *end->group;
  const std::span words(group.arrival_words, std::size_t{group.port->world_size} * group.port->lanes);
  place = {&words[group.channel_index(end->inbound.source, end->inbound.lane)],
           std::as_writable_bytes(words)};
  return {};
}

void EventSink::completed(transport::ChannelId channel, std::uint64_t count) {
  ChannelEnd* end = ends_.find(channel);
  if (end == nullptr || end->outbound == nullptr) return;
  Outbound& out = *end->outbound;
  if (count <= out.completed) return;
  if (count > out.submitted) {
    failures_.note(
        *end->group, static_cast<std::int32_t>(out.target),
        {StatusCode::kInternal, route_text(out) + ": the peer acknowledged " + std::to_string(count) +
                                    " puts of " + std::to_string(out.submitted) + " sent"});
    return;
  }
  const std::uint64_t more = count - std::exchange(out.completed, count);
  {
    const memory::Touching touching(end->group->port->key.session);
    publish_count(*out.completed_word, count);
  }
  end->group->in_flight -= std::min(more, end->group->in_flight);  // a failed group has none left
  bump(out.counters->completed_total, more);
  bump(end->group->session->counters->completed_total, more);
}

void EventSink::channel_failed(transport::ChannelId channel, const Status& why) {
  ChannelEnd* end = ends_.find(channel);
  if (end == nullptr) return;
  const std::uint32_t other = end->outbound != nullptr ? end->outbound->target : end->inbound.source;
  if (end->group->gone[other]) return;
  const std::string context = "group " + end->group->port->name + ", rank " +
                              std::to_string(end->group->port->rank) +
                              (end->outbound != nullptr ? " -> rank " : " <- rank ") + std::to_string(other);
  failures_.note(*end->group, static_cast<std::int32_t>(other), why.with_context(context));
}

}  // namespace mkernel::dataplane
