// What the frames of a peer do to its channels. Every field is untrusted.
#include <algorithm>
#include <string>

#include "daemon/transport/tcp/link.h"
#include "daemon/transport/tcp/peer.h"
#include "proto/ipc/packet.h"

namespace mkernel::transport::tcp {
namespace {

std::string channel_text(ChannelKey key) {
  return "channel " + std::to_string(key);
}

}  // namespace

Status Link::check_size(const PutFrame& frame) const {
  const std::uint64_t bytes = std::uint64_t{frame.length} + frame.rest;
  if (bytes > context_.max_put_bytes) {
    return {StatusCode::kDataLoss, "malformed put of " + std::to_string(bytes) + " bytes; the limit is " +
                                       std::to_string(context_.max_put_bytes)};
  }
  const bool empty_part = frame.length == 0 && (frame.rest > 0 || frame.continues != 0);
  if (frame.length <= kMaxFrameBytes && !empty_part && frame.continues <= 1) return {};
  return {StatusCode::kDataLoss, "malformed frame of a put: " + std::to_string(frame.length) + " bytes of " +
                                     std::to_string(bytes) + " that are left; the limit is " +
                                     std::to_string(kMaxFrameBytes)};
}

Status Link::on_put(const PutFrame& frame, Landing& landing) {
  MK_RETURN_IF_ERROR(check_size(frame));
  Inbound* channel = peer_.inbound(frame.key);
  if (channel == nullptr || !channel->refusal.ok()) {
    if (frame.continues == 0) ++context_.statistics.puts_discarded;
    return {};
  }
  if (&peer_.link_of(frame.key) != this) {
    return {StatusCode::kDataLoss, channel_text(frame.key) + " came on a connection that is not its own"};
  }
  const auto announced = channel->window.announce(frame.sequence);
  if (announced.verdict == ReceiveWindow::Verdict::kDuplicate) {
    if (frame.continues == 0) ++context_.statistics.puts_duplicate;
    channel->received = std::max(channel->received, announced.number);
    return {};
  }
  const Partial& partial = channel->partial;
  if (frame.continues != 0) {
    if (partial.number != announced.number || partial.rest != frame.length + frame.rest) {
      return {StatusCode::kDataLoss, channel_text(frame.key) + ": a frame goes on with put number " +
                                         std::to_string(announced.number) + ", of which " +
                                         std::to_string(frame.length + frame.rest) + " bytes were not left"};
    }
    land(frame, *channel, landing);
    return {};
  }
  // The stream keeps order: a put that is neither held nor the next one means that its sender is confused. A
  // new connection tells it where to go on.
  const std::uint64_t next = std::max(channel->received, channel->window.prefix()) + 1;
  if (announced.number != next || partial.number != 0) {
    return {StatusCode::kDataLoss,
            channel_text(frame.key) + ": put with wire sequence " + std::to_string(frame.sequence) +
                " where number " + std::to_string(partial.number != 0 ? partial.number : next) + " is next"};
  }
  channel->received = announced.number;
  begin(frame, announced.number, *channel, landing);
  return {};
}

/// The first frame of a put.
void Link::begin(const PutFrame& frame, std::uint64_t number, Inbound& channel, Landing& landing) {
  Target target;
  const std::uint32_t bytes = frame.length + frame.rest;
  if (bytes > 0) {
    const Status placed = context_.sink->place(channel.id, frame.region, frame.offset, bytes, target);
    if (!placed.ok()) {
      ++context_.statistics.puts_discarded;
      return refuse(channel, placed);
    }
  }
  channel.partial = {number, bytes, target};
  land(frame, channel, landing);
}

/// Says where the payload of a frame goes: to the next bytes of the channel's partial put.
void Link::land(const PutFrame& frame, Inbound& channel, Landing& landing) {
  Partial& partial = channel.partial;
  const auto [region, offset] = partial.target;
  if (frame.length > 0 && region->on_gpu()) {
    const Status begun = unloader_.begin(channel, partial.number, *region, offset);
    if (!begun.ok()) {
      ++context_.statistics.puts_discarded;
      return refuse(channel, begun.with_context("region " + std::to_string(frame.region) + ", GPU memory"));
    }
    landing.unload = true;
  } else if (frame.length > 0) {
    landing.at = region->host(offset);
  }
  landing.channel = &channel;
  landing.number = partial.number;
  landing.region = region;
  landing.last = frame.rest == 0;
  partial.rest -= frame.length;
  partial.target.offset += frame.length;
  if (landing.last) partial = {};
}

void Link::refuse(Inbound& channel, const Status& why) {
  channel.refusal = why;
  channel.partial = {};
  answer(channel);
}

void Link::on_received(const Landing& landing) {
  on_landed(*landing.channel, landing.number);
}

void Link::on_landed(Inbound& channel, std::uint64_t number) {
  if (!channel.window.accept(number)) return;
  context_.events.arrived(channel);
  answer(channel);
}

void Link::on_landing_failed(Inbound& channel, const Status& why) {
  reader_.forget(channel);
  if (channel.refusal.ok()) refuse(channel, why);
}

Status Link::on_open(const OpenFrame& frame) {
  Inbound* channel = peer_.inbound(frame.key);
  if (channel != nullptr && &peer_.link_of(frame.key) == this) writer_.answer(*channel);
  return {};
}

Status Link::on_closed(const ClosedFrame& frame) {
  Inbound* channel = peer_.inbound(frame.key);
  if (channel == nullptr || &peer_.link_of(frame.key) != this || channel->partial.number == 0) return {};
  channel->received = channel->partial.number - 1;
  channel->partial = {};
  return {};
}

Status Link::on_held(const HeldFrame& frame) {
  Outbound* channel = peer_.outbound(frame.key);
  if (channel == nullptr || channel->failed || &peer_.link_of(frame.key) != this) return {};
  const std::uint64_t before = channel->window.acknowledged();
  const bool believable =
      channel->granted ? channel->window.acknowledge(frame.count) : channel->window.resume(frame.count);
  if (!believable) {
    channel->failed = true;
    writer_.withdraw(*channel);
    context_.events.channel_failed(
        channel->id,
        {StatusCode::kDataLoss,
         describe() + ": " + channel_text(frame.key) + ": the receiver says it holds " +
             std::to_string(frame.count) + " puts, but " + std::to_string(before) +
             " were acknowledged before and " + std::to_string(channel->window.submitted()) + " submitted"});
    return {};
  }
  channel->granted = true;
  if (channel->window.unsent() != nullptr) writer_.offer(*channel);
  if (frame.count > before) context_.events.completed(*channel);
  return {};
}

Status Link::on_refused(const RefusedFrame& frame) {
  Outbound* channel = peer_.outbound(frame.key);
  if (channel == nullptr || channel->failed) return {};
  const bool known = frame.code > 0 && frame.code <= static_cast<std::uint32_t>(StatusCode::kDataLoss);
  channel->failed = true;
  writer_.withdraw(*channel);
  context_.events.channel_failed(
      channel->id,
      Status(known ? static_cast<StatusCode>(frame.code) : StatusCode::kUnknown,
             "node " + peer_.identity().node + " refused a put: " + std::string(ipc::text_of(frame.text))));
  return {};
}

}  // namespace mkernel::transport::tcp
