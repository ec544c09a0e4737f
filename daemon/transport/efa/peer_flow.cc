// What goes out to a peer.
#include <algorithm>

#include "daemon/transport/efa/peer.h"

namespace mkernel::transport::efa {
namespace {

constexpr std::size_t kBatch = 32;

/// Puts leave this part of the queue to acknowledgements: without those the other end stops.
std::uint32_t reserve(const Queue& queue) {
  return queue.depth() / 8;
}

}  // namespace

std::size_t Peer::flow(Time now) {
  if (!connection_.up()) return 0;
  std::size_t sent = send_acknowledgements(now);
  turn_.clear();
  std::swap(turn_, active_);
  for (Outbound* const channel : turn_) {
    if (!connection_.up()) break;
    sent += send_puts(*channel, now);
  }
  return sent;
}

std::size_t Peer::send_acknowledgements(Time now) {
  std::size_t sent = 0;
  while (sent < to_acknowledge_.size()) {
    Inbound& channel = *to_acknowledge_[sent];
    if (channel.acknowledging || channel.acknowledged == channel.published) {
      ++sent;  // listed twice
      continue;
    }
    const Request request{.id = kAcknowledgement | *channel.index,
                          .immediate = {true, *channel.index, to_wire(channel.published)}};
    const auto posted = connection_.queue()->post(std::span(&request, 1));
    if (!posted.ok()) {
      lose(posted.status(), now);
      return sent;
    }
    if (posted.value() == 0) break;
    channel.acknowledged = channel.published;
    channel.acknowledging = true;
    numbers_.set_acknowledging(*channel.index, true);
    ++sent;
  }
  to_acknowledge_.erase(to_acknowledge_.begin(), to_acknowledge_.begin() + static_cast<std::ptrdiff_t>(sent));
  return sent;
}

/// With the device of the connection. There is one.
rdma::Registrations& Peer::memory_of(ChannelMemory& memory) {
  const Queue& queue = *connection_.queue();
  return memory_on(queue.device(), queue.pd(), context_.registrar.get(), memory);
}

RemoteRegion* Peer::locate(Outbound& channel, std::uint32_t region) {
  const auto found = std::find_if(channel.targets.begin(), channel.targets.end(),
                                  [&](const RemoteRegion& target) { return target.region == region; });
  if (found != channel.targets.end()) return found->known ? &*found : nullptr;
  ask_for(channel, region);
  return nullptr;
}

void Peer::ask_for(Outbound& channel, std::uint32_t region) {
  channel.targets.push_back({.region = region});
  say(RegionMessage{head(MessageType::kResolve), channel.key, region, 0});
}

/// Null: it is being registered, or the channel has failed.
const rdma::Registration* Peer::source_of(Outbound& channel, const memory::Region& region) {
  if (channel.memory) {
    if (const auto* const known = channel.last_source.find(*channel.memory, region)) return known;
  }
  return look_up(channel, region);
}

const rdma::Registration* Peer::look_up(Outbound& channel, const memory::Region& region) {
  const auto made = channel.last_source.look_up(memory_of(channel.memory), region);
  if (!made.ok()) {
    fail(channel, made.status());
    return nullptr;
  }
  if (made.value() == nullptr) channel.source_pending = true;
  return made.value();
}

/// False: not now (the target is being asked for, the source registered), or never (the channel has failed).
bool Peer::make_request(Outbound& channel, const Put& put, Request& out) {
  out = {.id = std::uint64_t{channel.serial} << 32 | static_cast<std::uint32_t>(put.sequence),
         .immediate = {false, *channel.index, to_wire(put.sequence)}};
  if (put.length == 0) return true;
  const RemoteRegion* const target = locate(channel, put.remote_region);
  if (target == nullptr) return false;
  if (!memory::in_bounds(put.remote_offset, put.length, target->bytes)) {
    refuse(channel, put, *target);
    return false;
  }
  const Device& device = connection_.queue()->device();
  if (put.length <= device.abilities().inline_bytes && !put.source->on_gpu()) {
    out.inlined = put.source->host(put.source_offset);
  } else {
    const rdma::Registration* const source = source_of(channel, *put.source);
    if (source == nullptr) return false;
    const rdma::Chunk& whole = source->chunks.front();
    out.source = whole.address + put.source_offset;
    out.lkey = whole.lkey;
  }
  if (std::find(channel.sources.begin(), channel.sources.end(), put.source) == channel.sources.end()) {
    channel.sources.push_back(put.source);
  }
  out.target = target->address + put.remote_offset;
  out.rkey = target->rkey;
  out.length = put.length;
  return true;
}

void Peer::refuse(Outbound& channel, const Put& put, const RemoteRegion& target) {
  fail(channel, {StatusCode::kOutOfRange, "[" + std::to_string(put.remote_offset) + ", +" +
                                              std::to_string(put.length) + ") lies outside region " +
                                              std::to_string(put.remote_region) + " of " +
                                              std::to_string(target.bytes) + " bytes"});
}

/// One doorbell's worth; stays active as long as it can go on.
std::size_t Peer::send_puts(Outbound& channel, Time now) {
  Queue& queue = *connection_.queue();
  if (!channel.index || channel.failed || channel.accused || !channel.revoked.empty()) return 0;
  const std::uint64_t first = channel.window.sent() + 1;
  std::uint64_t last = std::min(channel.window.submitted(), channel.done.prefix() + channel.done.capacity());
  last = std::min<std::uint64_t>(last, channel.window.acknowledged() + connection_.peer_window());
  last = std::min<std::uint64_t>(last, channel.window.sent() + kBatch);
  if (last < first) return 0;  // offered again when something completes
  const std::uint64_t credit =
      connection_.peer_credit() - std::min<std::uint64_t>(connection_.peer_credit(), outstanding_);
  const std::uint64_t room = queue.room() - std::min(queue.room(), reserve(queue));
  last = std::min(last, channel.window.sent() + std::min(credit, room));
  Request requests[kBatch];
  std::size_t count = 0;
  while (first + count <= last && make_request(channel, channel.window.at(first + count), requests[count])) {
    ++count;
  }
  const auto posted = queue.post(std::span(requests, count));
  if (!posted.ok()) {
    lose(posted.status(), now);
    return 0;
  }
  for (std::size_t i = 0; i < posted.value(); ++i) channel.window.mark_sent();
  if (outstanding_ == 0) heard_ = now;  // nobody has looked while nothing was due
  channel.flying += static_cast<std::uint32_t>(posted.value());
  channel.outstanding += posted.value();
  outstanding_ += posted.value();
  const bool waits = channel.failed || (first + count <= last);  // for an answer about its target
  if (!waits && channel.window.unsent() != nullptr) offer(channel);
  return posted.value();
}

}  // namespace mkernel::transport::efa
