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

Status Link::on_put(const PutFrame& frame, Landing& landing) {
  if (frame.length > context_.max_put_bytes) {
    return {StatusCode::kDataLoss, "malformed put of " + std::to_string(frame.length) +
                                       " bytes; the limit is " + std::to_string(context_.max_put_bytes)};
  }
  Inbound* channel = peer_.inbound(frame.key);
  if (channel == nullptr || !channel->refusal.ok()) {
    ++context_.statistics.puts_discarded;
    return {};
  }
  if (&peer_.link_of(frame.key) != this) {
    return {StatusCode::kDataLoss, channel_text(frame.key) + " came on a connection that is not its own"};
  }
  const auto announced = channel->window.announce(frame.sequence);
  if (announced.verdict == ReceiveWindow::Verdict::kDuplicate) {
    channel->received = std::max(channel->received, announced.number);
    ++context_.statistics.puts_duplicate;
    return {};
  }
  // The stream keeps order: a put that is neither held nor the next one means that its sender is confused. A
  // new connection tells it where to go on.
  const std::uint64_t next = std::max(channel->received, channel->window.prefix()) + 1;
  if (announced.number != next) {
    return {StatusCode::kDataLoss, channel_text(frame.key) + ": put with wire sequence " +
                                       std::to_string(frame.sequence) + " where number " +
                                       std::to_string(next) + " is next"};
  }
  channel->received = landing.number = announced.number;
  place(frame, *channel, landing);
  return {};
}

void Link::place(const PutFrame& frame, Inbound& channel, Landing& landing) {
  if (frame.length > 0) {
    if (const Status placed = find_target(frame, channel, landing); !placed.ok()) {
      ++context_.statistics.puts_discarded;
      return refuse(channel, placed);
    }
  }
  landing.channel = &channel;
}

Status Link::find_target(const PutFrame& frame, Inbound& channel, Landing& landing) {
  Target target;
  MK_RETURN_IF_ERROR(context_.sink->place(channel.id, frame.region, frame.offset, frame.length, target));
  if (target.region->on_gpu()) {
    MK_RETURN_IF_ERROR(unloader_.begin(channel, landing.number, *target.region, target.offset)
                           .with_context("region " + std::to_string(frame.region) + ", GPU memory"));
    landing.unload = true;
  } else {
    landing.at = target.region->host(target.offset);
  }
  landing.region = target.region;
  return {};
}

void Link::refuse(Inbound& channel, const Status& why) {
  channel.refusal = why;
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
