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
    ++context_.statistics.puts_duplicate;
    return {};
  }
  // The stream keeps order: a put that is neither held nor the next one means that its sender is confused. A
  // new connection tells it where to go on.
  if (announced.number != channel->window.prefix() + 1) {
    return {StatusCode::kDataLoss, channel_text(frame.key) + ": put with wire sequence " +
                                       std::to_string(frame.sequence) + " where number " +
                                       std::to_string(channel->window.prefix() + 1) + " is next"};
  }
  landing.number = announced.number;
  return place(frame, *channel, landing);
}

Status Link::place(const PutFrame& frame, Inbound& channel, Landing& landing) {
  if (frame.length > 0) {
    Target target;
    Status placed = context_.sink->place(channel.id, frame.region, frame.offset, frame.length, target);
    if (placed.ok() && target.region->mapping.data() == nullptr) {
      placed = {StatusCode::kUnimplemented, "transport tcp reaches host memory only; region " +
                                                std::to_string(frame.region) + " is GPU memory"};
    }
    if (!placed.ok()) {
      channel.refusal = placed;
      ++context_.statistics.puts_discarded;
      writer_.answer(channel);
      return {};
    }
    landing.region = target.region;
    landing.at = target.region->host(target.offset);
  }
  landing.channel = &channel;
  return {};
}

void Link::on_landed(const Landing& landing) {
  if (!landing.channel->window.accept(landing.number)) return;
  context_.events.arrived(*landing.channel);
  writer_.answer(*landing.channel);
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
